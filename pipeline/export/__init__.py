"""Writes a finished dataset in the format of another trainer."""
