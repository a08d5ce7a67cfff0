"""Starts the process that asks transformers about a tokenizer folder."""

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


def start_child(folder: Path) -> "subprocess.Popen[bytes]":
    """Start the process."""
    # -P prevents the import of a folder called transformers in the working directory.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", child.__name__, str(folder.absolute())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | ENVIRONMENT,
    )
