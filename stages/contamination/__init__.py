"""Finds text of evaluation rows within training examples."""
