"""What this node is made of, read from the node itself without root and without vendor tools."""
