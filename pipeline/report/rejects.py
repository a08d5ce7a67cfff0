"""Examples of rejected rows from rejects.jsonl, which is read one line at a time."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import msgspec

from ...schemas.errors import StoreError
from ...schemas.names import REJECTS
from ...schemas.report import Reject
from ..dataset.open_dataset import Finished

EACH, MOST = 3, 60
"""Maximum number of examples per reason and source, and in total."""
_DETAIL = 400
"""Maximum number of characters of a detail, which may quote the row."""
_LINES = 1_000_000
"""Maximum number of lines that are read."""


def rejects_of(dataset: Finished) -> list[Reject]:
    """Some rejected rows of each reason and source, in file order; none if the file is gone."""
    try:
        with Path(dataset.store.local(REJECTS)).open("rb") as file:
            return some_of(islice(file, _LINES))
    except (OSError, StoreError):
        return []


def some_of(lines: Iterable[bytes]) -> list[Reject]:
    """Some of the lines of rejects.jsonl: the first few of each reason and source. A damaged line is left out, which
    `verify` names.
    """
    decoder = msgspec.json.Decoder(Reject)
    seen: Counter[tuple[str, str]] = Counter()
    shown = list[Reject]()
    for line in lines:
        try:
            one = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        kind = (one.source, one.reason)
        if seen[kind] < EACH and len(shown) < MOST and one.reason != "more":
            seen[kind] += 1
            detail = one.detail if len(one.detail) <= _DETAIL else one.detail[: _DETAIL - 1] + "…"
            shown.append(Reject(one.source, one.file, one.line, one.reason, detail))
    return shown
