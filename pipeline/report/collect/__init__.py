"""The numbers of a report, read from a dataset or a run."""
