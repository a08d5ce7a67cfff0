"""Follows one example from its source row to its packed row."""
