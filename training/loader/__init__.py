"""Makes batches in a given order, for torch, accelerate and streams."""
