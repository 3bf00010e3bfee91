"""Records a training step by step, inside its ranks; the room `proof` compares the records."""
