"""A few rows of all inputs, for a plan that looks at a sample."""
