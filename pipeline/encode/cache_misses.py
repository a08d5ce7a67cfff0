"""Explains why blocks must be encoded again: the cache had parts of the same rows, made with other settings.

A part's key is a hash, so the settings behind it cannot be read back. Each run therefore stores these settings in the
cache, under the hash of each source's first block. Appending data does not change that block.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ...schemas.errors import StoreError
from ...schemas.jsontext import decode_note
from ...schemas.units import plural
from ..inputs.blocks import InputFile
from ..store.checksummed import seal, unseal
from ..store.open_store import Store
from .task import EncodeTask

FOLDER = "history"


class _PartNote(msgspec.Struct, frozen=True):
    """The settings with which the last run that read a source made its parts."""

    date: str
    settings: dict[str, Any]


def note_parts(cache: Store, files: Sequence[InputFile], tasks: Sequence[EncodeTask]) -> None:
    """Store how these parts were made, to explain to a later run why it cannot use them.

    Args:
        tasks: one per block, in the order of `files`.
    """
    for first, *_ in _by_source(files, tasks).values():
        data = seal(msgspec.json.encode(_PartNote(time.strftime("%Y-%m-%d"), _settings(first))))
        with suppress(StoreError):  # a read-only cache or a full disk; notes are optional
            if cache.read(_note(first)) != data:
                cache.replace_bytes(_note(first), data)


def why_missing(
    cache: Store, files: Sequence[InputFile], tasks: Sequence[EncodeTask], missing: Iterable[EncodeTask]
) -> Iterator[str]:
    """Yield a sentence for each source whose blocks were encoded before with other settings.

    Args:
        missing: tasks whose parts are not in the cache.
    """
    gone = {task.block.hash for task in missing}
    for source, own in _by_source(files, tasks).items():
        if own[0].block.hash not in gone:
            continue
        try:
            last = decode_note(unseal(cache.read(_note(own[0]))), _PartNote)
        except msgspec.MsgspecError:  # missing or damaged
            continue
        then, now = last.settings, _settings(own[0])
        if then.get("format") != now["format"]:
            continue  # rows that are read differently give other documents, so missing parts need no explanation
        keys = [key for key in sorted({*then, *now}) if then.get(key) != now.get(key)]
        blocks = {task.block.hash for task in own}
        why = f"parts made on {last.date} have another {', '.join(keys)}" if keys else f"parts of {last.date} are gone"
        yield f"source {source}: {len(gone & blocks):,} of {plural(len(blocks), 'block')} encoded again: the {why}"


def _by_source(files: Sequence[InputFile], tasks: Sequence[EncodeTask]) -> dict[str, list[EncodeTask]]:
    found: dict[str, list[EncodeTask]] = {}
    for name, task in zip((file.source for file in files for _ in file.blocks), tasks, strict=True):
        found.setdefault(name, []).append(task)
    return found


def _settings(task: EncodeTask) -> dict[str, Any]:
    """What the part depends on besides the block, as JSON gives it back. The same for all blocks of a source."""
    settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(task.payload()))
    encode = {"encoding" if key == "format" else key: value for key, value in settings.pop("encode").items()}
    del settings["block"]
    return settings | encode


def _note(first: EncodeTask) -> str:
    return f"{FOLDER}/{first.block.hash}.json"
