"""What other lengths and strategies would give, from lengths alone."""
