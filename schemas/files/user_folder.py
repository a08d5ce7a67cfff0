"""The user's folder for data that can be made again."""

import os
from collections.abc import Mapping
from pathlib import Path


def user_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The cache folder of the user: `$PACKTRAIN_CACHE`, else `$XDG_CACHE_HOME/packtrain`, else `~/.cache/packtrain`."""
    if own := environ.get("PACKTRAIN_CACHE"):
        return Path(own).expanduser().absolute()
    home = Path(environ.get("HOME") or Path.home())
    return Path(environ.get("XDG_CACHE_HOME") or home / ".cache", "packtrain").absolute()
