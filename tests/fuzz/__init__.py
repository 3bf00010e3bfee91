"""No traceback, no silence and no wait, whatever a command is given."""
