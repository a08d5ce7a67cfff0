"""Models of transformers: how they are read, loaded, drawn and adapted, and what they answer."""
