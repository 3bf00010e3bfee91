"""Memory and time of a training before it runs, from arithmetic alone."""
