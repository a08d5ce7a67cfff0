"""Turns text into token ids and spans; tokenizer engines, and the check that they are correct."""
