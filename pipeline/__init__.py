"""Everything with side effects: sources, stores, executors, the run, the command line."""
