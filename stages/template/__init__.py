"""A chat template: its sandbox, its profile, and text that remembers its message."""
