"""Finds out why an example, or a part of it, is not packed, by repeating the run's decisions on its encoded parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np

from ...schemas.config.config import RunConfig
from ...schemas.errors import PacktrainError
from ...schemas.jsontext import decode_note
from ...schemas.reasons import cause_of
from ...stages.mask.policy import Mask
from ..dataset.cached_parts import CachedParts, EncodedDocument
from ..dataset.ids import Address
from ..dataset.open import Finished
from ..dataset.output_folder import REJECTS
from ..dataset.run_notes import NotedPart
from ..encode.parts import EncodedPart
from ..inputs.blocks import split_name
from ..pack.decide import decide as decide_together
from ..pack.document_index import Catalogue, Holdout, read_catalogue
from ..pack.select import limits_of, select_alone
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


def decide(config: RunConfig, cached: CachedParts, one: EncodedDocument, tokenizer_json: str) -> Decision:
    """Find out why a document in the cache was not packed.

    Reads only the document's own part, unless other documents matter, as for duplicates and source weights.

    Args:
        tokenizer_json: the run's tokenizer.json; empty if it is gone.
    """
    part = cached.of_document(one.doc_id)
    row = one.doc_id - part.first
    alone = config.model_copy(
        update={
            "duplicates": "keep",
            "sources": tuple(source.model_copy(update={"weight": None, "repeat": None}) for source in config.sources),
        }
    )
    try:
        catalogue = _catalogue(alone, [part])
        selection = select_alone(catalogue, alone, Mask.of(config.mask), tokenizer_json).selection
        reason = selection.reasons[int(selection.code[row])]
        if not reason:
            catalogue = _catalogue(config, cached.parts)
            chosen = select_alone(catalogue, config, Mask.of(config.mask), tokenizer_json)
            decide_together(chosen, config, Path(gettempdir()))
            selection = chosen.selection
            reason = selection.reasons[int(selection.code[one.doc_id])]
    except PacktrainError as error:
        return Decision("", f"the cache does not say why ({error})")
    twin = None
    if reason == "duplicate":
        twin = _twin(cached, one, selection.stays)
    return Decision(reason, cause_of(reason), twin)


def cuts_of(
    config: RunConfig, cached: CachedParts, one: EncodedDocument, standings: Sequence[Standing]
) -> list[CutTokens]:
    """Find the tokens of a packed document that no row contains, and the limit that cut them."""
    covered = np.zeros(len(one.ids), dtype=np.bool_)
    for standing in standings:
        covered[standing.start : standing.start + len(standing.ids)] = True
    part = cached.of_document(one.doc_id)
    row = one.doc_id - part.first
    catalogue = _catalogue(config, [part], digests=False)
    low, high = int(catalogue.low[row]), int(catalogue.high[row])
    prompt = int(catalogue.prompt_cut[row]) if catalogue.prompt_cut is not None else 0
    completion = int(catalogue.completion_cut[row]) if catalogue.completion_cut is not None else 0
    last = len(one.ids)
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


def _catalogue(config: RunConfig, parts: Sequence[NotedPart], *, digests: bool | None = None) -> Catalogue:
    """Return the run's catalogue of documents, or a part of it."""
    names = [source.name for source in config.sources]
    wanted = config.duplicates == "drop" if digests is None else digests
    places = [part.place for part in parts]
    return read_catalogue(places, Mask.of(config.mask), limits_of(config), Holdout.of(config), names, digests=wanted)


def _twin(cached: CachedParts, one: EncodedDocument, stays: Any) -> int | None:
    for part in cached.parts:
        doc_id = part.first
        for batch in EncodedPart(part.place.path).batches:
            for row, digest in enumerate(batch.column("digest").to_pylist()):
                if digest == one.digest and stays[doc_id + row]:
                    return doc_id + row
            doc_id += batch.num_rows
    return None


def _is_label(shown: str, label: str) -> bool:
    """Whether a file name in the rejects file, which includes the suffix, means this file."""
    folder, _, name = shown.rpartition("/")
    return label in (shown, f"{folder}/{split_name(name)[0]}" if folder else split_name(name)[0])
