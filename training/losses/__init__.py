"""The losses of a training by document: which source a document is of, the record of each step, and what it tells."""
