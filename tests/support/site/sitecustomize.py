"""Loaded by every Python that the tests start, because the tests put this folder on PYTHONPATH.

A test that kills processes loses nothing without fsync, only one that cuts the power would; and on a busy disk most of
the time of a small run would go there. `PACKTRAIN_TEST_FSYNC=1` leaves it on.
"""

import os


def _nothing(descriptor: object) -> None:
    """In place of `os.fsync`."""


if not os.environ.get("PACKTRAIN_TEST_FSYNC"):
    os.fsync = _nothing  # type: ignore[assignment]
