"""The configuration of a run: its keys, the formats of rows, YAML, and advice on how to set a key."""
