"""The whole batch, as a training loop sees it, of which each rank holds a part."""
