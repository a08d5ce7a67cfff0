"""The run from top to bottom: prepare, encode, select, pack, commit; its forecast and its repair."""
