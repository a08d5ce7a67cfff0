"""Loaded by every Python that the tests start, because the tests put this folder on PYTHONPATH.

A test that kills processes loses nothing without fsync, only one that cuts the power would; and on a busy disk most of
the time of a small run would go there. `PACKTRAIN_TEST_FSYNC=1` leaves it on.

A process that would load a tokenizer folder is forked from one that has transformers loaded: see `loads_tokenizers` in
`warm`. So is any Python with a program, where a test has put `warm.python()` into its environment.
"""

import os
import sys

_LOADS = ["-P", "-m", "packtrain.pipeline.encode.ask_transformers"]


def _nothing(descriptor: object) -> None:
    """In place of `os.fsync`."""


if not os.environ.get("PACKTRAIN_TEST_FSYNC"):
    os.fsync = _nothing  # type: ignore[assignment]


def _hand_over(server: str, arguments: list[str]) -> None:
    import contextlib
    import runpy
    from pathlib import Path

    with contextlib.suppress(ConnectionRefusedError):  # the server has died: this process goes on by itself
        runpy.run_path(str(Path(__file__).parents[1] / "shim.py"))["hand_over"](server, arguments)


def _is_program(arguments: list[str]) -> bool:
    """Whether Python with these arguments runs code, a module or a file, rather than serving `multiprocessing`."""
    while arguments and arguments[0] in ("-u", "-B"):
        arguments = arguments[1:]
    if not arguments or arguments[0] == "-c":
        return arguments[1:] != [] and not arguments[1].startswith("from multiprocessing")
    return arguments[0] == "-m" or not arguments[0].startswith("-")


if sys.orig_argv[1:4] == _LOADS and os.environ.get("PACKTRAIN_TEST_LOADER"):
    _hand_over(os.environ["PACKTRAIN_TEST_LOADER"], sys.orig_argv[3:])
elif os.environ.get("PACKTRAIN_TEST_PYTHON") and _is_program(sys.orig_argv[1:]):
    _hand_over(os.environ["PACKTRAIN_TEST_PYTHON"], ["python", *sys.orig_argv[1:]])
