"""The state of a training on disk: written beside, published by one rename, checked before it is used."""
