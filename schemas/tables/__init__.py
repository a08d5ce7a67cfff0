"""What packtrain knows of each column, strategy, mask policy and the like: one table a kind, which all code reads."""
