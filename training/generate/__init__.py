"""Draws answers from a model: engines, the numbers behind each draw, and whole models from sharded checkpoints."""
