"""Compares training data with evaluation data: evaluation files → an index → hits by block."""
