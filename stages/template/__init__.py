"""A chat template: what runs it, what it does with every conversation, and where each character it writes comes
from."""
