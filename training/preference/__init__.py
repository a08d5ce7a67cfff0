"""Preference pairs: losses of pairs, and the log-probabilities of a reference model."""
