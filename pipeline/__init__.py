"""Everything that touches the world: sources, store, executors, the run, the command line."""
