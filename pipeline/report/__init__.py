"""The packing report: numbers, page and terminal summary."""
