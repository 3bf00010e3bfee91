"""Read what a node offers a run, in one pass; `echelon.checks` judges the result."""
