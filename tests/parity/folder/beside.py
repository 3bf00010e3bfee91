"""Be found in the folder or in the zip file."""

ANSWER = 42
