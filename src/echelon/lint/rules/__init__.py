"""The rules: what they find stands in their functions, why it matters in their pages, found by the code."""
