"""A finished dataset as both halves see it: names of its files, manifest, ledger, and the one reader of its rows and
documents.
"""
