"""Versions of installed packages, each looked up once, because reading a package's metadata takes milliseconds."""

from functools import cache
from importlib import metadata


@cache
def version(package: str) -> str:
    """The version according to `importlib.metadata.version`.

    Raises:
        importlib.metadata.PackageNotFoundError: it is not installed.
    """
    return metadata.version(package)
