"""Samples of a model: prompts of the data, the loop over an engine, and the file that it resumes."""
