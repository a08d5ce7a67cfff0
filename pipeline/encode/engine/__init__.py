"""Chooses the tokenizer engine of a run, and checks it against the reference."""
