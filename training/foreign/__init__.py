"""Packed rows for trainers that want a dataset with keys of their own."""
