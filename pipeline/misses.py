"""Why blocks must be encoded again: the cache has parts of the same rows, made in another way. Which way is said.

A part's key is a hash, and says nothing. So each run notes in the cache how the parts of each source were made, and
of which blocks: the 64 smallest hashes of these. Two sets of blocks that are alike share many of their smallest hashes
(Broder, 1997: min-wise sampling), however large they are and whatever they are called.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from ..schemas.errors import StoreError
from ..schemas.fingerprint import fingerprint
from ..schemas.jsontext import decode_note
from .encode import EncodeTask
from .inputs.blocks import InputFile
from .sealed import seal, unseal
from .stores import Store

FOLDER = "history"
SAMPLE = 64
"""Hashes of a note."""
NOTES = 64
"""Notes that are kept, the newest."""
_DIGITS = 16
_SHOWN = 4

_NAMES = {
    "format": "sources.{source}.format",
    "max_row_bytes": "sources.{source}.max_row_bytes",
    "where": "sources.{source}.where",
    "pairs": "whether rows are preference pairs",
    "encode.format": "the version of packtrain's encoding",
    "encode.tokenizer": "the tokenizer",
    "encode.engine": "the tokenizer engine",
    "encode.engine_version": "the engine's version",
    "encode.jinja2_version": "the version of jinja2",
    "encode.template": "the chat template or its variables",
    "encode.date": "tokenizer.date",
    "encode.trace": "whether templates are traced",
    "encode.on_limit": "tokenizer.on_limit",
    "encode.allow_lost": "tokenizer.allow_lost",
    "encode.around": "what the tokenizer puts around a text",
}
_HASHED = ("encode.tokenizer", "encode.template", "encode.around", "encode.format", "pairs", "options.code")
"""Fields whose values say nothing to people."""


class _Note(msgspec.Struct, frozen=True):
    """How the parts of a source were made, and of which blocks."""

    date: str
    head: dict[str, Any]
    """What their keys were made from, the block apart."""
    blocks: list[str]
    """The smallest hashes, shortened."""


@dataclass(slots=True)
class _Group:
    """Blocks of one source that are encoded alike."""

    source: str
    head: dict[str, Any]
    blocks: list[str]


def note_parts(cache: Store, files: Sequence[InputFile], tasks: Sequence[EncodeTask]) -> None:
    """Write down how these parts were made, for a later run that misses them.

    Args:
        tasks: one a block, in the order of `files`.
    """
    for group in _groups(files, tasks):
        sample = sorted(set(group.blocks))[:SAMPLE]
        name = f"{FOLDER}/{fingerprint([group.head, sample])[:40]}.json"
        note = _Note(time.strftime("%Y-%m-%d"), group.head, sample)
        data = seal(msgspec.json.encode(note))
        with suppress(StoreError):  # a cache that can only be read, or a full disk: a run can do without
            if cache.read(name) != data:
                cache.replace_bytes(name, data)
    kept = _notes(cache)
    for name, _ in sorted(kept.items(), key=lambda one: one[1].date)[:-NOTES]:
        cache.remove(name)


def why_missing(
    cache: Store, files: Sequence[InputFile], tasks: Sequence[EncodeTask], missing: Iterable[EncodeTask]
) -> Iterator[str]:
    """A sentence for each source of which blocks were encoded before, but otherwise.

    Args:
        missing: tasks whose parts the cache does not hold.
    """
    gone = {task.block.hash[:_DIGITS] for task in missing}
    if not gone:
        return
    notes = list(_notes(cache).values())
    for group in _groups(files, tasks) if notes else ():
        mine = sorted(gone.intersection(group.blocks))
        sample = set(mine[:SAMPLE])
        # The likest, and of those the newest; of the same head only the blocks are gone.
        best = max(notes, key=lambda note: (len(sample.intersection(note.blocks)), note.date))
        if not sample.intersection(best.blocks):
            continue
        total = len(set(group.blocks))
        what = f"all {total:,} blocks are" if len(mine) == total else f"{len(mine):,} of {total:,} blocks are"
        what = "its one block is" if total == 1 else what
        fields = list(_fields(best.head, group.head, group.source))
        if best.head.get("format") != group.head.get("format"):
            continue  # rows that are read otherwise are other documents; nobody expects their parts
        if not fields:
            yield f"source {group.source}: {what} encoded again: their parts of {best.date} are gone"
            continue
        shown = ", ".join(fields[:_SHOWN]) + (f" and {len(fields) - _SHOWN} more" if len(fields) > _SHOWN else "")
        verb = "differs" if len(fields) == 1 else "differ"
        yield f"source {group.source}: {what} encoded anew: {shown} {verb} from the parts of {best.date}"


def _groups(files: Sequence[InputFile], tasks: Sequence[EncodeTask]) -> list[_Group]:
    groups: dict[tuple[str, str], _Group] = {}
    sources = [file.source for file in files for _ in file.blocks]
    heads: dict[str, tuple[str, dict[str, Any]]] = {}
    for source, task in zip(sources, tasks, strict=True):
        if source not in heads:  # all blocks of a source are encoded alike
            payload = msgspec.json.decode(msgspec.json.encode(task.payload()))  # as it is read again: lists for tuples
            head = {key: value for key, value in payload.items() if key != "block"}
            heads[source] = (fingerprint(head), head)
        mark, head = heads[source]
        groups.setdefault((source, mark), _Group(source, head, [])).blocks.append(task.block.hash[:_DIGITS])
    return list(groups.values())


def _notes(cache: Store) -> dict[str, _Note]:
    found = {}
    for name in cache.names(FOLDER):
        data = unseal(cache.read(name))
        try:
            found[name] = decode_note(data, _Note)
        except msgspec.MsgspecError:  # of another version
            cache.remove(name)
    return found


def _fields(then: Any, now: Any, source: str, where: str = "") -> Iterator[str]:
    """The fields in which two heads differ, as people know them."""
    if where != "encode.around" and isinstance(then, dict) and isinstance(now, dict):
        for key in sorted({*then, *now}):
            yield from _fields(then.get(key), now.get(key), source, f"{where}.{key}" if where else key)
    elif then != now:
        name = _NAMES.get(where, f"sources.{source}: {where}").format(source=source)
        yield name if where in _HASHED else f"{name} ({_short(then)} → {_short(now)})"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else f"{text[:37]}…"
