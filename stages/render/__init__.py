"""Renders an example as text, and records what each part of the text is."""
