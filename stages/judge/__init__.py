"""Judges what programs print and return: problems, extraction of code, comparison with what is expected, pass@k."""
