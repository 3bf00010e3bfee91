"""Ranks that train alone for some steps and then meet: local SGD, DiLoCo, and the variant that does not wait."""
