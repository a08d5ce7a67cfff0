"""Which spans of tokens are trained."""
