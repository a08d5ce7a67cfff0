"""Lengths become a plan, and a plan becomes the columns of packed rows."""
