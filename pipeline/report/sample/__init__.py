"""Takes a few rows of all inputs, for a plan that uses a sample."""
