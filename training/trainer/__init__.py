"""A small trainer over packed shards: one readable loop, its checkpoints, and what it prints."""
