"""Files, folders, databases, downloads and loggers of a script that many ranks run: one rank writes."""
