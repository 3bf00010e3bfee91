"""What is published about machines: data files, and the schema that they are checked against."""
