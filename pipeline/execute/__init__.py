"""Runs tasks: on this machine, on a Ray cluster, or in several runs that share the work."""
