"""The scan of a stream's inputs: what a run does, and a note of it in the cache, so that it is done once.

Every process that opens the stream needs the scan, and reading all inputs for it takes long. A note stands under
whatever the scan of a source depends on; every block's hash is checked again when the block is encoded.
"""

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from ..schemas.config import RunConfig, SourceConfig
from ..schemas.fingerprint import fingerprint
from ..schemas.jsontext import decode_note
from ..schemas.names import check_name
from .inputs.arrowfiles import ArrowPlace
from .inputs.blocks import Block, InputFile, Place
from .inputs.parquet import ParquetPlace, SpooledTable
from .inputs.paths import Found, Kind
from .inputs.separated import SeparatedPlace
from .inputs.spool import FORMAT as CUT_FORMAT
from .inputs.spool import SpooledLines, SpooledSeparated, SpooledText
from .inputs.textfiles import TextPlace
from .sources import BLOCK_BYTES, find_inputs, scan_source
from .store import LocalStore

FORMAT = 3
"""Raised whenever notes are written otherwise, or files are cut otherwise, than before."""
_PLACES: dict[str, type[Place]] = {
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


def scan_inputs(config: RunConfig, base: Path, cache: LocalStore) -> list[InputFile]:
    """All files of all sources, hashed and cut. A source that was scanned before is not read again.

    A note holds for the same files of the same sizes, inodes and times, the time of their last change of any kind
    among them, which no program can set back; of a URL, for the same size and marks of its store. What has none, as
    datasets of the hub, is scanned each time.

    Raises:
        ConfigError, InputError: see `sources.scan_source`.
    """
    return [file for source in config.sources for file in _scan(source, base, cache)]


def _scan(source: SourceConfig, base: Path, cache: LocalStore) -> list[InputFile]:
    name = _name(source, find_inputs(source, base))
    kept = cache.read(name) if name is not None else None
    if kept is not None:
        files = _read(kept, cache)
        if files is not None:
            return [replace(file, source=source.name) for file in files]
    files = scan_source(source, base, cache.root)
    # Else something changed meanwhile, and the note would be of neither state.
    if name is not None and _name(source, find_inputs(source, base)) == name:
        cache.replace_bytes(name, write_note(files, cache))
    return files


def _name(source: SourceConfig, found: Sequence[Found]) -> str | None:
    """Where the note of a source stands; None where nothing tells whether its inputs are as they were."""
    inputs: list[Any] = []
    for one in found:
        if one.kind is Kind.LOCAL:
            stat = one.path.stat()
            inputs.append([str(one.path.absolute()), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns])
        elif one.kind is Kind.URL and one.stamp:
            inputs.append([one.name, one.size, one.stamp])
        else:
            return None
    how = [source.max_row_bytes, source.max_rows, BLOCK_BYTES, CUT_FORMAT, version("pyarrow")]
    return f"scans/source-{fingerprint([FORMAT, inputs, how])}.json"


def write_note(files: Sequence[InputFile], cache: LocalStore) -> bytes:
    """The note: plain data, but for a block's place, which says its kind, and its own file, which says its size."""
    plain = msgspec.to_builtins(list(files), enc_hook=str)
    for file, noted in zip(files, plain, strict=True):
        for block, entry in zip(file.blocks, noted["blocks"], strict=True):
            if block.place is not None:
                entry["place"] = [type(block.place).__name__, entry["place"]]
            if block.spooled is not None:
                name = block.spooled.relative_to(cache.root).as_posix()
                entry["spooled"] = [name, cache.size(name)]
    return msgspec.json.encode(plain)


def _read(note: bytes, cache: LocalStore) -> list[InputFile] | None:
    """The files of a note; None where it is of another version or damaged, or what it points to has gone."""
    try:
        plain = decode_note(note, list[Any])
        files = []
        for noted in plain:
            blocks = tuple(read_block(entry, cache) for entry in noted.pop("blocks"))
            file = msgspec.convert({**noted, "blocks": ()}, InputFile, dec_hook=read_path)
            if file.path.stat().st_size != file.size:
                return None  # of what lies far away, the copy in the cache
            files.append(replace(file, blocks=blocks))
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError, OSError):
        return None
    return files


def read_block(entry: dict[str, Any], cache: LocalStore) -> Block:
    """A block of a note; ValueError where its own file has gone."""
    place, spooled = entry.pop("place"), entry.pop("spooled")
    block = msgspec.convert({**entry, "place": None, "spooled": None}, Block)
    if place is not None:
        kind, fields = place
        block = replace(block, place=msgspec.convert(fields, _PLACES[kind]))
    if spooled is not None:
        name, size = spooled
        check_name(name)
        if cache.size(name) != size:
            raise ValueError(f"{name} is not there")
        block = replace(block, spooled=cache.path(name))
    return block


def read_path(kind: type, text: str) -> Path:
    """The one field that JSON has no type for."""
    return Path(text)
