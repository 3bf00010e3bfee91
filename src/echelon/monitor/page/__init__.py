"""`echelon report --html`: one page with plots, in one file that needs nothing else."""
