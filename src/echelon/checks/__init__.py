"""Find what is wrong with nodes before a run begins: pure functions turn surveys into findings."""
