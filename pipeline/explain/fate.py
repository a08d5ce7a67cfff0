"""Says why an example, or a part of it, is not packed, from the run's table of documents and its list of rejects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...schemas.errors import PacktrainError
from ...schemas.jsontext import decode_note
from ...schemas.names import REJECTS
from ...schemas.reasons import cause_of
from ..dataset.cached_parts import EncodedDocument
from ..dataset.documents import Address
from ..dataset.open import Finished
from ..inputs.blocks import split_name
from ..pack.outcomes import REASONS
from ..pack.table import NAME as TABLE
from ..pack.table import Documents, open_table
from .packed_rows import Standing


@dataclass(frozen=True, slots=True)
class CutTokens:
    """Tokens of a packed document that no row contains."""

    begin: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a document is not packed."""

    reason: str
    detail: str
    twin: int | None = None
    """For a duplicate: the doc id of the example that it repeats."""


def open_documents(dataset: Finished, count: int) -> Documents | None:
    """Map what the run decided about its documents; None if that is gone, damaged, or of another run.

    Args:
        count: documents of the run.
    """
    try:
        documents, _ = open_table(dataset.store.local(TABLE))
    except (PacktrainError, OSError, ValueError, KeyError):  # of another version
        return None
    return documents if len(documents) == count else None


def decide(documents: Documents | None, doc_id: int) -> Decision:
    """Say why a document was not packed."""
    if documents is None:
        return Decision("", "_run/documents.arrow, which says why, is gone or damaged; run again")
    code = int(documents.outcome[doc_id])
    reason = REASONS[code] if code < len(REASONS) else ""
    twin = None
    if reason == "duplicate":
        same = documents.first_digest == documents.first_digest[doc_id]
        same &= documents.second_digest == documents.second_digest[doc_id]
        first = np.flatnonzero(same & ((documents.outcome == 0) | (documents.outcome == REASONS.index("not_sampled"))))
        twin = int(first[0]) if len(first) else None
    return Decision(reason, cause_of(reason), twin)


def cuts_of(documents: Documents | None, one: EncodedDocument, standings: Sequence[Standing]) -> list[CutTokens]:
    """Find the tokens of a packed document that no row contains, and the limit that cut them."""
    covered = np.zeros(len(one.ids), dtype=np.bool_)
    for standing in standings:
        covered[standing.start : standing.start + len(standing.ids)] = True
    last = len(one.ids)
    low, high, prompt, completion = 0, last, 0, 0
    if documents is not None:
        low, high, prompt, completion = (
            min(max(int(column[one.doc_id]), 0), last)
            for column in (documents.low, documents.high, documents.prompt_cut, documents.completion_cut)
        )
    stretches = [
        (0, prompt, "truncate.max_prompt_length"),
        (prompt, low, "truncate.max_length"),
        (low, high, "a piece in which nothing would be trained"),
        (high, last - completion, "truncate.max_length"),
        (last - completion, last, "truncate.max_completion_length"),
    ]
    out = []
    for begin, end, reason in stretches:
        gaps = np.flatnonzero(np.diff(np.concatenate([[True], covered[begin:end], [True]]).astype(np.int8)))
        for first, stop in zip(gaps[::2].tolist(), gaps[1::2].tolist(), strict=True):
            out.append(CutTokens(begin + first, begin + stop, reason))
    return out


def rejected(dataset: Finished, address: Address) -> dict[str, Any] | None:
    """Return the entry of an example in the rejects file, or of its whole row; None if there is neither."""
    data = dataset.store.read(REJECTS) or b""
    whole = None
    needle = f'"line":{address.line},'.encode()
    for line in data.splitlines():
        if needle not in line:
            continue
        entry: dict[str, Any] = decode_note(line, dict[str, Any])
        if entry["source"] != address.source or not _is_label(entry["file"], address.file) or entry["reason"] == "more":
            continue
        if entry.get("example", -1) == address.sub:
            return entry
        if "example" not in entry:
            whole = entry
    return whole


def _is_label(shown: str, label: str) -> bool:
    """Whether a file name in the rejects file, which includes the suffix, means this file."""
    folder, _, name = shown.rpartition("/")
    return label in (shown, f"{folder}/{split_name(name)[0]}" if folder else split_name(name)[0])
