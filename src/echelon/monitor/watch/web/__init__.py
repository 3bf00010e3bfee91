"""`echelon watch --web`: the view of a run as one page, as data and as Prometheus text, behind a token."""
