"""Compares two finished datasets."""
