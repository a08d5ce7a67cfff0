"""Names of sources that a user gives by their paths alone."""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from ..store.open_store import is_url
from .file_kinds import split_name

_PATTERN = re.compile(r"[*?\[]")
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
"""Characters that the name of a source cannot have; see `SourceConfig.name`."""
_CHARACTERS = 64
_FALLBACK = "data"
"""The name of a path without letters or digits, such as `.`."""


def name_sources(paths: Sequence[str]) -> list[str]:
    """A name for each path: `chats` for `data/chats.jsonl.gz`, `web` for `web/**/*.parquet`, `ultrachat` for
    `hf://stingning/ultrachat@main`; a number distinguishes equal names, in the given order.
    """
    bases = [_base_name(path) for path in paths]
    names = list[str]()
    for base in bases:
        name = base
        number = 1
        while name in names or (number > 1 and name in bases):
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names


def _base_name(path: str) -> str:
    """The last part of a path that no pattern leaves open, without its suffix."""
    if is_url(path):
        parts = urlsplit(path)
        path = f"{parts.netloc}{parts.path}".partition("@")[0] if parts.scheme == "hf" else parts.path
    parts_of_path = path.rstrip("/").split("/")
    fixed = next((index for index, part in enumerate(parts_of_path) if _PATTERN.search(part)), len(parts_of_path))
    last = parts_of_path[fixed - 1] if fixed else ""
    stem = split_name(last)[0] if fixed == len(parts_of_path) else last
    return _UNFIT.sub("-", stem).strip("-._")[:_CHARACTERS] or _FALLBACK
