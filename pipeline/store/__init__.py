"""Folders and object stores: create-only puts, locks, local copies."""
