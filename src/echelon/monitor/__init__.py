"""What a run did, from the files of its directory alone."""
