"""Finds a tokenizer, and learns from transformers what it is."""
