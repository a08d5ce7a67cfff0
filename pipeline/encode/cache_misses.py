"""Explains why blocks must be encoded again: the cache had parts of the same rows, made with other settings.

A part's key is a hash, so the settings behind it cannot be read back. Each run therefore stores these settings in the
cache, under the hash of each source's first block. Appending data does not change that block.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from ...schemas.errors import StoreError
from ...schemas.jsontext import decode_note
from ...schemas.units import plural
from ..inputs.blocks import InputFile
from ..store.checksummed import seal, unseal
from ..store.open import Store
from .task import EncodeTask

FOLDER = "history"
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
    "encode.generation_stops": "the stop tokens beside the tokenizer",
    "encode.prove": "mask.prove",
}
_HASHED = (
    "encode.tokenizer",
    "encode.template",
    "encode.around",
    "encode.format",
    "encode.generation_stops",
    "encode.prove",
    "pairs",
    "options.code",
)
"""Fields whose values are not shown, because they are too long or not those that a user writes."""


class _PartNote(msgspec.Struct, frozen=True):
    """The settings with which the last run that read a source made its parts."""

    date: str
    head: dict[str, Any]
    """The fields of the parts' keys, without the block."""


@dataclass(slots=True)
class _SourceParts:
    """A source; all its blocks are encoded with the same settings."""

    name: str
    head: dict[str, Any]
    blocks: list[str]

    @property
    def note(self) -> str:
        return f"{FOLDER}/{self.blocks[0]}.json"


def note_parts(cache: Store, files: Sequence[InputFile], tasks: Sequence[EncodeTask]) -> None:
    """Store how these parts were made, to explain to a later run why it cannot use them.

    Args:
        tasks: one per block, in the order of `files`.
    """
    for source in _sources(files, tasks):
        data = seal(msgspec.json.encode(_PartNote(time.strftime("%Y-%m-%d"), source.head)))
        with suppress(StoreError):  # a read-only cache or a full disk; notes are optional
            if cache.read(source.note) != data:
                cache.replace_bytes(source.note, data)


def why_missing(
    cache: Store, files: Sequence[InputFile], tasks: Sequence[EncodeTask], missing: Iterable[EncodeTask]
) -> Iterator[str]:
    """Return a sentence for each source whose blocks were encoded before with other settings.

    Args:
        missing: tasks whose parts are not in the cache.
    """
    gone = {task.block.hash for task in missing}
    for source in _sources(files, tasks) if gone else ():
        if source.blocks[0] not in gone:
            continue
        try:
            last = decode_note(unseal(cache.read(source.note)), _PartNote)
        except msgspec.MsgspecError:  # missing, or from another version
            continue
        if last.head.get("format") != source.head.get("format"):
            continue  # rows that are read differently give other documents, so missing parts need no explanation
        every = set(source.blocks)
        total, mine = len(every), len(gone & every)
        what = (
            f"all {total:,} blocks are"
            if mine == total
            else f"{mine:,} of {plural(total, 'block')} {'is' if mine == 1 else 'are'}"
        )
        what = "its one block is" if total == 1 else what
        fields = list(_fields(last.head, source.head, source.name))
        if not fields:
            gone_or_old = f"the parts made on {last.date} are gone, or of an earlier version"
            yield f"source {source.name}: {what} encoded again: {gone_or_old}"
            continue
        shown = ", ".join(fields[:_SHOWN]) + (f" and {len(fields) - _SHOWN} more" if len(fields) > _SHOWN else "")
        verb = "differs" if len(fields) == 1 else "differ"
        said = f"source {source.name}: {what} encoded again: {shown} {verb} from the parts made on {last.date}, "
        yield said + "which stay in the cache"


def _sources(files: Sequence[InputFile], tasks: Sequence[EncodeTask]) -> list[_SourceParts]:
    found: dict[str, _SourceParts] = {}
    names = [file.source for file in files for _ in file.blocks]
    for name, task in zip(names, tasks, strict=True):
        if name not in found:  # all blocks of a source have the same settings
            payload = msgspec.json.decode(
                msgspec.json.encode(task.payload())
            )  # as read back from JSON: tuples become lists
            found[name] = _SourceParts(name, {key: value for key, value in payload.items() if key != "block"}, [])
        found[name].blocks.append(task.block.hash)
    return list(found.values())


def _fields(then: Any, now: Any, source: str, where: str = "") -> Iterator[str]:
    """The fields in which two sets of settings differ, by their user-facing names."""
    if where != "encode.around" and isinstance(then, dict) and isinstance(now, dict):
        for key in sorted({*then, *now}):
            yield from _fields(then.get(key), now.get(key), source, f"{where}.{key}" if where else key)
    elif then != now:
        name = _NAMES.get(where, f"sources.{source}: {where}").format(source=source)
        yield name if where in _HASHED else f"{name} ({_short(then)} → {_short(now)})"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else f"{text[:37]}…"
