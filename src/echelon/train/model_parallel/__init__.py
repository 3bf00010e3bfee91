"""Split the model of an unchanged script: every rank has every batch whole, and computes a part of the model."""
