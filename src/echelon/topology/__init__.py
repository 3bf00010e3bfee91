"""Read the hardware of this node, without root and without vendor tools."""
