"""Writes a run's notes about itself, and reads them back for repair, `inspect --id` and reports.

The notes are in `_run` and hold paths and times. Another person may have written them, so they are not trusted: they
are used only if their hashes agree with the plan, the parts and finally the manifest. Code that they name is not run,
URLs that they name are not fetched, and folders that they name are written only if packtrain has marked them as a
cache. For anything else the user must give the configuration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError, PacktrainError, StoreError
from ...schemas.fingerprint import fingerprint
from ...schemas.jsontext import decode_note
from ...schemas.names import part_record
from ..encode.encode_spec import EncodeSpec
from ..encode.parts import PARTS, PartList, PartPlace
from ..inputs.blocks import Block, InputFile, files_note, read_files_note
from ..inputs.scan import join_small
from ..inputs.user_reader import is_reader
from ..store.cache_lock import is_cache
from ..store.checksummed import seal, unseal
from ..store.open import Store, StoredFile, ask_all, cache_beside, is_url, open_store

CONFIG = "_run/config.json"
SCAN = "_run/scan.json"
MARKED = "_run/contaminated.json"


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """A run's configuration, and where its paths start."""

    config: RunConfig
    base: Path
    """Where relative paths of the configuration start."""
    cache: str
    """Full path or URL of the cache with the encoded parts."""


@dataclass(frozen=True, slots=True)
class NotedPart:
    """One encoded part of a run, with the block that it was made from."""

    place: PartPlace
    file: InputFile
    block: Block
    first: int
    """Doc id of its first document."""
    documents: int


def remember(
    out: Store,
    config: RunConfig,
    base: Path,
    cache: Store,
    files: Sequence[InputFile],
    places: Sequence[PartPlace] = (),
) -> None:
    """Write the whole configuration, how the inputs are cut into blocks, and which examples share text with evaluation
    rows.
    """
    data = config.model_dump(mode="json")
    for source in data["sources"]:
        source["path"] = [without_secrets(path) for path in source["path"]]
    if config.decontaminate is not None:
        data["decontaminate"]["against"] = [without_secrets(path) for path in config.decontaminate.against]
        marked = {str(number): place.contaminated for number, place in enumerate(places) if place.contaminated}
        out.replace_bytes(MARKED, seal(msgspec.json.encode({"parts": marked})))
    asked = {"base": str(base.absolute()), "cache": cache.url, "config": data}
    out.replace_bytes(CONFIG, seal(msgspec.json.encode(asked)))
    out.replace_bytes(SCAN, seal(files_note(files)))


def recall(out: Store) -> RunOrigin | None:
    """Read the configuration that `remember` wrote; None if it is gone or damaged.

    Its cache is the noted one if `recall_cache` allows it, else the default place beside `out`.
    """
    data = unseal(out.read(CONFIG))
    if data is None:
        return None
    try:
        noted = decode_note(data, dict[str, Any])
        config = RunConfig.model_validate(noted["config"])
        cache = recall_cache(out, noted["cache"]) or cache_beside(out.url)
        return RunOrigin(config, Path(noted["base"]), cache)
    except (ValueError, KeyError, TypeError):  # written by another version
        return None


def recall_cache(out: Store, place: str) -> str | None:
    """Return the cache that a note names; None if the note is not allowed to choose it.

    Args:
        out: the output with the note.
        place: a local folder must be marked as a cache of packtrain; a URL must be in the bucket of `out`.
    """
    if not is_url(place):
        return place if Path(place).is_absolute() and is_cache(Path(place)) else None
    mine, theirs = urlsplit(out.url), urlsplit(place)
    return place if (mine.scheme, mine.netloc) == (theirs.scheme, theirs.netloc) else None


def refuse_code(config: RunConfig, what: str) -> None:
    """Refuse a noted configuration that names a reader function, or has a condition: both can open files.

    Args:
        what: the note's name, for the message.

    Raises:
        ConfigError: it has one; the message says what to do.
    """
    for source in config.sources:
        if source.where is not None:
            raise ConfigError(
                f"source {source.name} has a condition `where`, according to {what}. packtrain only evaluates "
                "conditions that you write yourself: give the run's configuration with --config"
            )
        if is_reader(source.format):
            raise ConfigError(
                f"source {source.name} is read by {source.format}, according to {what}. packtrain only runs code that "
                "you name yourself: give the run's configuration with --config"
            )


def refuse_urls(config: RunConfig, what: str, more: Sequence[str] = ()) -> None:
    """Refuse a noted configuration that names URLs.

    Args:
        more: other places that it names.

    Raises:
        ConfigError: it names a URL; the message says what to do.
    """
    paths = [path for source in config.sources for path in source.path]
    for path in (*paths, *more, config.tokenizer.path):
        if is_url(path):
            raise ConfigError(
                f"{what} names {without_secrets(path)}, which would have to be fetched. packtrain only fetches URLs "
                "that you name yourself: give the run's configuration with --config"
            )


def recall_files(out: Store, plan: Mapping[str, Any] | None = None) -> list[InputFile] | None:
    """Read the inputs, with the blocks they were cut into; None if the note is gone or damaged.

    The inputs themselves may be gone. The URLs of remote inputs are left out, so that a note cannot make packtrain
    fetch them.

    Args:
        plan: the dataset's plan; a note with other inputs is ignored.
    """
    files = read_files_note(unseal(out.read(SCAN)))
    if files is None:
        return None
    if plan is not None:
        inputs = [(one["source"], one["file"], one["hash"]) for one in plan["inputs"]]
        if [(file.source, file.label, file.hash) for file in files] != inputs:
            return None
    return [replace(file, far=None) for file in files]


class _Made(msgspec.Struct):
    """The only field needed of a record's payload: the block's hash."""

    block: str


class _Counted(msgspec.Struct):
    """The count of a part's examples."""

    examples: int


class _Head(msgspec.Struct):
    """The fields of a part's record that are needed to find its documents."""

    bytes: int
    counts: _Counted
    payload: _Made


def recall_part_list(out: Store) -> PartList | None:
    """Read the list of packed parts and their cache; None if it is gone or damaged."""
    try:
        return decode_note(out.read(PARTS), PartList)
    except (ValueError, TypeError, StoreError):
        return None


def recall_parts(out: Store, plan: Mapping[str, Any]) -> tuple[Store, list[NotedPart]] | str:
    """Return the cache and all parts that a finished run was packed from, in order; or why they are not available.

    A run encodes one part per block, in input order; small files may share a block. So the notes on blocks and on parts
    are joined, and every pair is checked against the part's record.
    """
    files, listed = recall_files(out, plan), recall_part_list(out)
    if files is None or listed is None:
        note = out.where(SCAN if files is None else PARTS)
        return f"{note}, which says which encoded parts belong to the inputs, is gone or damaged"
    where = recall_cache(out, listed.cache)
    if where is None:
        return f"the cache is gone: packtrain has not marked {listed.cache} as a cache"
    cache = open_store(where)
    blocks = [(file, block) for file in files for block in file.blocks]
    readers = [source["name"] for source in plan["config"]["sources"] if is_reader(source["format"])]
    if len(blocks) != len(listed.parts):  # else no files were joined, as in datasets of earlier versions
        blocks = [(file, block) for file in join_small(files, readers) for block in file.blocks]
    if len(blocks) != len(listed.parts):
        return f"the parts in {out.where(PARTS)} do not match the blocks in {out.where(SCAN)}"

    def head(pair: tuple[tuple[InputFile, Block], StoredFile]) -> _Head | None:
        (_, block), part = pair
        try:
            found = decode_note(unseal(cache.read(part_record(part.name))), _Head)
            same = found.payload.block == block.hash and cache.size(part.name) == found.bytes
        except (StoreError, msgspec.MsgspecError):
            return None
        return found if same else None

    names = {source["name"]: index for index, source in enumerate(plan["config"]["sources"])}
    marked = _recall_marked(out)
    if marked is None and plan["config"].get("decontaminate"):
        return f"{out.where(MARKED)}, which says which examples share text with evaluation rows, is gone or damaged"
    pairs = list(zip(blocks, listed.parts, strict=True))
    parts: list[NotedPart] = []
    first = 0
    for ((file, block), part), found in zip(pairs, ask_all(cache, head, pairs), strict=True):
        if found is None or file.source not in names:
            return f"the cache is gone: {cache.where(part.name)} is missing or damaged"
        keys = (marked or {}).get(str(len(parts)), b"")
        place = PartPlace(cache, part, names[file.source], file.lines_of(block), keys)
        parts.append(NotedPart(place, file, block, first, found.counts.examples))
        first += found.counts.examples
    return cache, parts


class _Marked(msgspec.Struct):
    """By number of the part: see `PartPlace.contaminated`."""

    parts: dict[str, bytes]


def _recall_marked(out: Store) -> dict[str, bytes] | None:
    try:
        parts = decode_note(unseal(out.read(MARKED)), _Marked).parts
    except (msgspec.MsgspecError, StoreError):
        return None
    return parts if all(len(keys) % 8 == 0 for keys in parts.values()) else None


def recall_spec(cache: Store, plan: dict[str, Any]) -> EncodeSpec | None:
    """Read from the cache how the parts were encoded; None if the cache has lost it."""
    payload = {key: value for key, value in plan["encode"].items() if key != "pairs"}
    try:
        return EncodeSpec.load(cache, f"specs/{fingerprint(payload)}.json")
    except (PacktrainError, msgspec.MsgspecError):
        return None


def without_secrets(path: str) -> str:
    """Return a URL without password and signature; other text is unchanged."""
    if "://" not in path or path.startswith("hf://"):
        return path
    parts = urlsplit(path)
    signed = parts.scheme in ("http", "https") and parts.query
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="" if signed else parts.query).geturl()
