"""Turns blocks of input into encoded parts in the cache."""
