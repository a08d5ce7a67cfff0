"""Decides which row every rank reads at every step: a stateless order, mixtures, balance."""
