"""`echelon watch`: every rank and device of a run, from the files of its directory, while the run goes on."""
