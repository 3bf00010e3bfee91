"""Measure echelon beside what people use today."""
