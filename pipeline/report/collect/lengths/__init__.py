"""How long documents are, and which `max_length` suits them."""
