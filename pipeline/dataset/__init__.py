"""A finished dataset, opened: manifest, run notes, tokens as text, checks."""
