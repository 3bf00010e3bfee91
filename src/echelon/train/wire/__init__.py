"""How ranks meet and exchange: the world, groups, messages, tensors."""
