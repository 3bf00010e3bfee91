"""Continue an unchanged script from a checkpoint: put its variables back, or repeat its loop without computing."""
