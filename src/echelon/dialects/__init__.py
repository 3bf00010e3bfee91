"""Other launchers' command lines and frameworks' settings, in the words of `echelon run`."""
