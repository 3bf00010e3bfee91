"""Sample the devices and the host once a second, without a process for each sample."""
