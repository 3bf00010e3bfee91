"""The rehearsal of faults: the script runs for some steps in a scratch copy of its folder, and one thing goes wrong."""
