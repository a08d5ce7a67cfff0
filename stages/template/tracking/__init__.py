"""Strings that know which message they came from, and templates rendered with them."""
