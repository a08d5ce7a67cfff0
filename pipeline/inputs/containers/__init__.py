"""The kinds of input files, and how each is cut into blocks and read."""
