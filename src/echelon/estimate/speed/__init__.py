"""The speed of a training on more devices, from sizes that were measured."""
