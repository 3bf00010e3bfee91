"""Measurements and checks that need a GPU: `make gpu`."""
