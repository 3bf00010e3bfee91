"""Where the nodes of a run come from, and how agents start on them: one protocol and its members."""
