"""Whether a training on several ranks is that of one device: the first step, and later ones."""
