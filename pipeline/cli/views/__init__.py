"""What commands print: to a terminal, to a pipe or as JSON."""
