"""A dataset as both halves see it: names of its files, its manifest and its ledger."""
