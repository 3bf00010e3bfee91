"""Scripts for one device whose model is split, and their tests."""
