"""Know the devices of each vendor, and read the files in which the kernel shows a node's hardware."""
