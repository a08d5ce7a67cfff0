"""Packed rows: their statistics, their balance between ranks, and a few of them as text."""
