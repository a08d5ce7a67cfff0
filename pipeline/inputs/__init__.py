"""Inputs of every container, cut into blocks: lines, comma-separated values, Parquet, Arrow, compressed, far away."""
