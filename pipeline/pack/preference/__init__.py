"""Preference pairs: chooses, checks and writes them."""
