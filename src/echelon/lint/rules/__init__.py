"""The rules: their functions find mistakes; their pages, found by code, say why it matters."""
