"""Continues an unchanged script from a checkpoint: its loop is repeated without computing, up to the saved step."""
