"""Looks at the first batch that reaches a model in training, and stops what would train on another than was packed."""
