"""Draws a report as a page, and as tables in a terminal."""
