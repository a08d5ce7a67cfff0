"""Runs untrusted Python programs: bubblewrap or sandlock around a driver that forks once per test."""
