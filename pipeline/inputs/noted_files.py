"""Stores scanned inputs as notes, in a run's output and in the cache."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.jsontext import decode_note
from ...schemas.names import check_name
from ..store.local import LocalStore
from .blocks import Block, InputFile, RowReader
from .containers.arrow import ArrowPlace
from .containers.lines import TextPlace
from .containers.parquet import ParquetPlace, SpooledTable
from .containers.separated import SeparatedPlace
from .containers.spool import SpooledLines, SpooledSeparated, SpooledText

_PLACES: dict[str, type[RowReader]] = {
    kind.__name__: kind
    for kind in (
        ArrowPlace,
        ParquetPlace,
        SeparatedPlace,
        SpooledLines,
        SpooledSeparated,
        SpooledTable,
        SpooledText,
        TextPlace,
    )
}


def files_note(files: Sequence[InputFile], cache: LocalStore | None = None) -> bytes:
    """The files as a JSON note. A block's place is stored with the name of its class.

    Args:
        cache: store files of the cache by their names there, with sizes; without it, by their paths.
    """
    plain = msgspec.to_builtins(list(files), enc_hook=str)
    for file, noted in zip(files, plain, strict=True):
        for block, entry in zip(file.blocks, noted["blocks"], strict=True):
            if block.place is not None:
                entry["place"] = [type(block.place).__name__, entry["place"]]
            if block.spooled is not None and cache is not None:
                name = block.spooled.relative_to(cache.root).as_posix()
                entry["spooled"] = [name, cache.size(name)]
    return msgspec.json.encode({"files": plain})


def read_files_note(data: bytes | None, cache: LocalStore | None = None) -> list[InputFile] | None:
    """The files of a note; None if it is damaged or from another version, or if a file is missing in the cache."""
    if data is None:
        return None
    try:
        files = []
        for noted in decode_note(data, dict[str, Any])["files"]:
            blocks = tuple(_block(entry, cache) for entry in noted.pop("blocks"))
            file = msgspec.convert({**noted, "blocks": ()}, InputFile, dec_hook=_path)
            files.append(replace(file, blocks=blocks))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return files


def _block(entry: dict[str, Any], cache: LocalStore | None) -> Block:
    place, spooled = entry.pop("place"), entry.pop("spooled")
    block = msgspec.convert({**entry, "place": None, "spooled": None}, Block)
    if place is not None:
        kind, fields = place
        block = replace(block, place=msgspec.convert(fields, _PLACES[kind]))
    if spooled is not None and cache is None:
        return replace(block, spooled=Path(spooled))
    if spooled is not None and cache is not None:
        name, size = spooled
        check_name(name)
        if cache.size(name) != size or cache.path(name).is_symlink():
            raise ValueError(f"{name} is not there")
        return replace(block, spooled=cache.path(name))
    return block


def _path(kind: type, text: str) -> Path:
    """Decode a path, the one field without a JSON type."""
    return Path(text)
