"""Published facts about machines: data files, and the schema that checks them."""
