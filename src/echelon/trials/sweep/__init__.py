"""`echelon sweep`: many runs of one script, with other values, side by side."""
