"""Proves that documents packed into one row do not see each other, on the same model and callable that train."""

from .probing import probe
from .report import Check, ProbeReport

__all__ = ["Check", "ProbeReport", "probe"]
