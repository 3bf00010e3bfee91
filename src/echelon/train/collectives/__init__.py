"""How fast the ranks speak with each other, by what they really go, and which nodes are slow."""
