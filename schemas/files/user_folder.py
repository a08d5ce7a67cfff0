"""The user's folder for data that can be made again."""

import os
from pathlib import Path


def user_folder() -> Path:
    """The cache folder of the user: `$PACKTRAIN_CACHE`, else `$XDG_CACHE_HOME/packtrain`, else `~/.cache/packtrain`."""
    if own := os.environ.get("PACKTRAIN_CACHE"):
        return Path(own).expanduser().absolute()
    home = Path(os.environ.get("HOME") or Path.home())
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache", "packtrain").absolute()
