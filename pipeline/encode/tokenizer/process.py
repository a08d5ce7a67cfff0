"""Starts the process that asks transformers about a tokenizer folder, for some runs before they need the answer."""

import atexit
import os
import subprocess
import sys
from pathlib import Path

from . import child

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
    "PYTHONIOENCODING": "utf-8",
}
"""Environment variables of that process, besides this one's."""

_early: dict[str, "subprocess.Popen[bytes]"] = {}
"""Processes that `start_early` has started, by the key of the folder's content."""


def start_child(folder: Path, key: str | None = None) -> "subprocess.Popen[bytes]":
    """Start the process; or return the one that was started early for a folder of this key, once."""
    early = _early.pop(key, None) if key else None
    if early is not None:
        return early
    # -P prevents the import of a folder called transformers in the working directory.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", child.__name__, str(folder.absolute())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | ENVIRONMENT,
    )


def start_early(folder: Path, key: str) -> None:
    """Start the process for `start_child` to return. It is ended with this process, if it is not wanted."""
    if not _early:
        atexit.register(end_early)
    if key not in _early:
        _early[key] = start_child(folder)


def end_early() -> None:
    """End the processes that nothing wanted."""
    while _early:
        _, process = _early.popitem()
        process.kill()
        process.communicate()
