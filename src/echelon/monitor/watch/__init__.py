"""`echelon watch`: what every rank and device of a run does, from the files of its directory, while it goes on."""
