"""`echelon run` as a user runs it: every test starts the command as a process of its own."""
