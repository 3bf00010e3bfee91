"""What a node offers a run, as the node itself shows it: read in one pass, and judged by `echelon.checks`."""
