"""What this program takes from PyTorch that is private or may move, and the check that it is there.

`internals` is the one door to private names; `targets` lists all names that echelon needs or replaces.
"""
