"""Which runs of tokens are trained."""
