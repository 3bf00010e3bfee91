"""Run a cell of a notebook, or a function, on several ranks: `%%echelon -n 4` and echelon.launch()."""
