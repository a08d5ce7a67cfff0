"""What is found of a source: one input, and the split that it is taken from."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ...schemas.errors import ConfigError, did_you_mean

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
"""How the name of an input that is not on this machine begins."""


@dataclass(frozen=True, slots=True)
class Found:
    """One input, not opened yet."""

    name: str
    """A path or a URL."""
    size: int
    """Bytes."""
    stamp: int
    """Changes with the input: its change time (ctime, in ns), or a hash of a server's metadata; 0 if unknown."""
    alias: str = ""
    """The path that its label is made from, if it is another one."""
    origin: str = ""
    """What the user knows a copy as: the URL, or the name of the dataset of the hub."""

    @property
    def is_url(self) -> bool:
        """Whether it is not on this machine."""
        return URL.match(self.name) is not None

    @property
    def place(self) -> str:
        """The path of a local file; of a URL, its host and path."""
        if not self.is_url:
            return self.name
        parts = urlsplit(self.name)
        return f"/{parts.hostname}{parts.path}"


def choose_split(splits: list[str], wanted: str | None, where: str, what: str) -> str:
    """The split to use.

    Raises:
        ConfigError: it does not exist, or there are several and none is given.
    """
    key = f"{where.removesuffix('path')}split"
    if wanted is not None:
        if wanted not in splits:
            near = did_you_mean(wanted, splits)
            raise ConfigError(f"{key}: {what} has no split {wanted!r}; it has {', '.join(splits) or 'none'}{near}")
        return wanted
    if len(splits) != 1:
        raise ConfigError(f"{key}: {what} has the splits {', '.join(splits) or '(none)'}; say which one")
    return splits[0]
