"""Why an example is not packed, or what of it is not: the run's own decisions, made again from its catalogue."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..schemas.config import RunConfig
from ..schemas.errors import PacktrainError
from ..schemas.jsontext import decode_note
from .catalogue import Catalogue, Holdout, PartPlace, read_catalogue
from .deciding import select
from .follow_cache import CachedParts, EncodedDocument, Part
from .follow_ids import Address
from .follow_rows import Standing
from .inputs.blocks import split_name
from .outfolder import REJECTS
from .parts import EncodedPart
from .reader import Finished
from .selecting import limits_of, mask_of

WHY = {
    "empty": "it has no token",
    "unproved": "nothing says surely where the assistant's turns lie, and the mask has to know",
    "prompt_rewritten": "the chat template renders its prompt alone otherwise than within the conversation",
    "min_tokens": "it is shorter than its filter allows",
    "max_tokens": "it is longer than its filter allows",
    "untrained": "the mask asks for none of its tokens, or only for the first, which cannot be trained",
    "overlong": "it is longer than truncate.max_length",
    "cut_untrained": "the limits leave nothing of it to train",
    "duplicate": "it says the same as an earlier example",
    "not_sampled": "the weights of the sources left it out",
}
"""What the ledger's words for dropped examples mean."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Tokens of a packed document that stand in no row."""

    begin: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a document is not packed."""

    reason: str
    detail: str
    twin: int | None = None
    """Of a duplicate: the doc id of the example that it repeats."""


def decide(dataset: Finished, config: RunConfig, cached: CachedParts, one: EncodedDocument) -> Decision:
    """Why a document that the cache holds was not packed.

    Its own part is enough, unless other documents have a say: duplicates, and the weights of sources.
    """
    index = cached.of_document(one.doc_id)
    row = one.doc_id - cached.parts[index].first
    alone = config.model_copy(
        update={
            "duplicates": "keep",
            "sources": tuple(source.model_copy(update={"weight": None, "repeat": None}) for source in config.sources),
        }
    )
    tokenizer = _tokenizer_json(dataset, cached)
    try:
        catalogue = _catalogue(alone, [cached.parts[index]])
        selection = select(catalogue, alone, mask_of(config), tokenizer).selection
        reason = selection.reasons[int(selection.code[row])]
        if not reason:
            catalogue = _catalogue(config, cached.parts)
            selection = select(catalogue, config, mask_of(config), tokenizer).selection
            reason = selection.reasons[int(selection.code[one.doc_id])]
    except PacktrainError as error:
        return Decision("", f"the cache does not say why ({error})")
    twin = None
    if reason == "duplicate":
        twin = _twin(cached, one, selection.stays)
    return Decision(reason, WHY.get(reason, ""), twin)


def cuts_of(config: RunConfig, cached: CachedParts, one: EncodedDocument, standings: Sequence[Standing]) -> list[Cut]:
    """Which tokens of a packed document stand in no row, and what took them."""
    covered = np.zeros(len(one.ids), dtype=np.bool_)
    for standing in standings:
        covered[standing.start : standing.start + len(standing.ids)] = True
    index = cached.of_document(one.doc_id)
    row = one.doc_id - cached.parts[index].first
    catalogue = _catalogue(config, [cached.parts[index]], digests=False)
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
            out.append(Cut(begin + first, begin + stop, reason))
    return out


def rejected(dataset: Finished, address: Address) -> dict[str, Any] | None:
    """The entry of an address in the list of rejects; one of its whole row if its example has none."""
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


def unproved_detail(part: Part, one: EncodedDocument) -> str:
    """Why a document's turns are not proved, as its part noted it; "" where it did not."""
    return next((why for line, sub, why in part.record().unproved_rows if (line, sub) == (one.line, one.sub)), "")


def _catalogue(config: RunConfig, parts: Sequence[Part], *, digests: bool | None = None) -> Catalogue:
    """The run's catalogue, or a part of it. Files and lines are left out: no decision looks at them."""
    places = [PartPlace(part.cache, part.file, part.source, "", 0) for part in parts]
    holdout = Holdout(config.holdout.fraction, config.holdout.by == "group", config.seed)
    names = [source.name for source in config.sources]
    wanted = config.duplicates == "drop" if digests is None else digests
    return read_catalogue(places, mask_of(config), limits_of(config), holdout, names, digests=wanted)


def _twin(cached: CachedParts, one: EncodedDocument, stays: Any) -> int | None:
    for part in cached.parts:
        doc_id = part.first
        for batch in EncodedPart(part.path).batches:
            for row, digest in enumerate(batch.column("digest").to_pylist()):
                if digest == one.digest and stays[doc_id + row]:
                    return doc_id + row
            doc_id += batch.num_rows
    return None


def _tokenizer_json(dataset: Finished, cached: CachedParts) -> str:
    from .follow_anew import find_spec

    spec = find_spec(dataset, cached.store)
    return spec.tokenizer_json if spec is not None else ""


def _is_label(shown: str, label: str) -> bool:
    """Whether the list of rejects, which shows suffixes, means this file."""
    folder, _, name = shown.rpartition("/")
    return label in (shown, f"{folder}/{split_name(name)[0]}" if folder else split_name(name)[0])
