"""Judges programs that a model wrote: runs them in a sandbox and compares what they give with what is expected."""
