"""Attention that ends at documents, and the proof that a model keeps packed documents apart."""
