"""What can be shown on a machine with a GPU: `make gpu`."""
