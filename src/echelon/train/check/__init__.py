"""Whether the ranks' training is that of one device: seen while they train."""
