"""Turns encoded parts into packed shards: documents are read, selected, planned in windows, and laid out."""
