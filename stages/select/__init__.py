"""Which documents are packed, how much of each, and how often."""
