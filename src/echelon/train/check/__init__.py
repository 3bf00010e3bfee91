"""Check whether a training on several ranks equals that of one device, at the first step and at later steps."""
