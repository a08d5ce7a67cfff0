"""Names of sources that a user gives by their paths alone."""

import glob
import re
from collections.abc import Sequence
from itertools import takewhile
from urllib.parse import urlsplit

from ..store.open_store import is_url
from .file_kinds import split_name

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
"""Characters that the name of a source cannot have; see `SourceConfig.name`."""
_MAX_CHARACTERS = 64
"""Of the name of a source, before a number is added."""
_FALLBACK = "data"
"""The name of a path without letters or digits, such as `.`."""


def name_sources(paths: Sequence[str]) -> list[str]:
    """A name for each path: `chats` for `data/chats.jsonl.gz`, `web` for `web/**/*.parquet`, `ultrachat` for
    `hf://stingning/ultrachat@main`; a number distinguishes equal names, in the given order.
    """
    bases = [_base_name(path) for path in paths]
    names: list[str] = []
    for base in bases:
        name = base
        number = 1
        # Of `a`, `a` and `a-2`, the second becomes `a-3`: the third has its own name.
        while name in names or (number > 1 and name in bases):
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names


def _base_name(path: str) -> str:
    """The last part of a path that no pattern leaves open, without its suffix."""
    if is_url(path):
        url = urlsplit(path)
        # Of a dataset of the hub, the owner stands where a URL has its host, and a revision may follow.
        path = f"{url.netloc}{url.path}".partition("@")[0] if url.scheme == "hf" else url.path
    names = path.rstrip("/").split("/")
    # Of `web/**/*.parquet`, only `web` is fixed.
    fixed = list(takewhile(lambda name: not glob.has_magic(name), names))
    base = fixed[-1] if fixed else ""
    # Only the name of a file has a suffix: `v1.5/*` is called `v1.5`.
    if len(fixed) == len(names):
        base, _ = split_name(base)
    return _UNFIT.sub("-", base).strip("-._")[:_MAX_CHARACTERS] or _FALLBACK
