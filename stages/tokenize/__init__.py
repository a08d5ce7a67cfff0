"""Turns text into token ids and runs; tokenizer engines, and the check that they are correct."""
