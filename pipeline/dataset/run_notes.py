"""Writes a run's notes about itself, and reads them back for `inspect`, reports and the next run.

`run.json` says what was asked for and where its parts are, `parts.json` how the inputs were cut into blocks and which
encoded part each became. They are not part of the dataset, and hold paths. Another person may have written them, so
they are not trusted: they are used only if their hashes agree with the plan and the parts. Code that they name is not
run, URLs that they name are not fetched, and nothing is written where they say.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from ...schemas.config.config import RunConfig
from ...schemas.errors import PacktrainError, StoreError
from ...schemas.fingerprint import fingerprint
from ...schemas.names import check_hash, check_name
from ..contamination import find_evaluation
from ..encode.encode_spec import EncodeSpec
from ..encode.parts import PartPlace
from ..encode.tokenizer import find_tokenizer
from ..inputs.blocks import Block, InputFile
from ..inputs.find import Found, find_inputs
from ..inputs.user_reader import is_reader, reader_file
from ..store.cache_tag import is_cache
from ..store.checksummed import get_note, put_note
from ..store.open_store import Store, StoredFile, ask_all, is_url, open_store

RUN = "_run/run.json"
PARTS = "_run/parts.json"
_Note = TypeVar("_Note")


@dataclass(frozen=True, slots=True)
class Request:
    """What a run is asked to do, and with what."""

    asked: str
    """Hash of the configuration, of the version, and of paths, sizes and times of all files: compared in
    milliseconds."""
    tokenizer: Path
    """The tokenizer's folder."""

    @classmethod
    def of(cls, config: RunConfig, base: Path, version: str) -> "Request":
        """Make the request of a configuration, with its inputs as they are now.

        Raises:
            ConfigError, TokenizerError: an input or the tokenizer is missing.
        """
        found, others = list[tuple[str, Found]](), list[Path]()
        for source in config.sources:
            found += [(source.name, one) for one in find_inputs(source, base)]
            if is_reader(source.format):
                others.append(reader_file(source.format, base, f"sources.{source.name}.format"))
        if config.decontaminate is not None:
            found += [("", one) for one in find_evaluation(config.decontaminate, base)]
        folder = find_tokenizer(config.tokenizer.path, base)
        others += [path for path in sorted(folder.iterdir()) if path.is_file()]
        template = config.tokenizer.chat_template
        if template and "{" not in template and (base / template).is_file():
            others.append(base / template)
        files: list[Any] = [str(base.absolute()), *((one.name, one.split, one.subset) for one in config.sources)]
        for name, one in found:
            files.append((name, one.shown, one.size, one.stamp))
        files += [(str(path.absolute()), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in others]
        tokenizer = config.tokenizer.model_dump(mode="json")
        return cls(fingerprint([config.identity(), tokenizer, files, version]), folder.absolute())


# What was asked for


class _Run(msgspec.Struct):
    asked: str
    """See `Request`."""
    base: str
    tokenizer: str
    config: dict[str, Any]


def remember(
    out: Store,
    config: RunConfig,
    base: Path,
    cache: Store,
    request: Request,
    files: Sequence[InputFile],
    places: Sequence[PartPlace],
    documents: Iterable[int],
) -> None:
    """Write what was asked for, how the inputs are cut into blocks, and the part of each block.

    Args:
        files: small ones joined, as their blocks are encoded.
        places: one for each block.
        documents: how many each part has.
    """
    data = config.model_dump(mode="json")
    for source in data["sources"]:
        source["path"] = [without_secrets(path) for path in source["path"]]
    if config.decontaminate is not None:
        data["decontaminate"]["against"] = [without_secrets(path) for path in config.decontaminate.against]
    put_note(out, RUN, _Run(request.asked, str(base.absolute()), str(request.tokenizer), data))
    parts = [_Part(place.part, count, place.contaminated) for place, count in zip(places, documents, strict=True)]
    put_note(out, PARTS, _Parts(cache.url, list(files), parts))


def is_asked_again(out: Store, request: Request) -> bool:
    """Whether the folder's last run had the same request."""
    note = _read(out, RUN, _Run)
    return note is not None and note.asked == request.asked


def recall(out: Store) -> tuple[RunConfig, Path] | None:
    """The configuration that `remember` wrote, and where its paths start; None if it is gone or damaged."""
    note = _read(out, RUN, _Run)
    try:
        return None if note is None else (RunConfig.model_validate(note.config), Path(note.base))
    except ValueError:
        return None


def tokenizer_folder(out: Store) -> Path | None:
    """The folder of the tokenizer that a run used; None if this machine does not have it."""
    note = _read(out, RUN, _Run)
    return Path(note.tokenizer) if note is not None and Path(note.tokenizer).is_dir() else None


def _allowed(out: Store, place: str) -> str | None:
    """The cache that a note names; None if the note is not allowed to choose it.

    Args:
        out: the output with the note.
        place: a local folder must be marked as a cache of packtrain; a URL must be in the bucket of `out`.
    """
    if not is_url(place):
        return place if Path(place).is_absolute() and is_cache(Path(place)) else None
    mine, theirs = urlsplit(out.url), urlsplit(place)
    return place if (mine.scheme, mine.netloc) == (theirs.scheme, theirs.netloc) else None


# Blocks and parts


class _Part(msgspec.Struct):
    file: StoredFile
    documents: Annotated[int, msgspec.Meta(ge=0)]
    contaminated: bytes = b""
    """See `PartPlace.contaminated`."""

    def __post_init__(self) -> None:
        check_name(self.file.name)
        check_hash(self.file.hash)
        if len(self.contaminated) % 8:
            raise ValueError("its marks are cut short")


class _Parts(msgspec.Struct):
    cache: str
    """The store with the parts."""
    files: list[InputFile]
    parts: list[_Part]
    """One for each block of the files, in their order."""


@dataclass(frozen=True, slots=True)
class NotedPart:
    """One encoded part of a run, with the block that it was made from."""

    place: PartPlace
    file: InputFile
    block: Block
    first: int
    """Doc id of its first document."""
    documents: int


def recall_files(out: Store, plan: Mapping[str, Any]) -> list[InputFile]:
    """The inputs, with the blocks they were cut into; none if the note is gone or damaged. They themselves may be gone.

    Args:
        plan: the dataset's; a note with other inputs counts as damaged.
    """
    note = _parts(out, plan)
    return [one for file in note.files for one in (file.members or (file,))] if note is not None else []


def _parts(out: Store, plan: Mapping[str, Any]) -> _Parts | None:
    """The note, if it is of the plan's inputs."""
    note = _read(out, PARTS, _Parts)
    if note is None:
        return None
    files = [one for file in note.files for one in (file.members or (file,))]
    planned = [(one["source"], one["file"], one["hash"]) for one in plan["inputs"]]
    return note if [(file.source, file.label, file.hash) for file in files] == planned else None


def recall_parts(out: Store, plan: Mapping[str, Any]) -> tuple[Store, list[NotedPart]] | str:
    """Return the cache and all parts that a finished run was packed from, in order; or why they are not available.

    The inputs must be those of the plan, and every part must have its size.
    """
    note = _parts(out, plan)
    blocks = [(file, block) for file in note.files for block in file.blocks] if note is not None else []
    names = {source["name"]: index for index, source in enumerate(plan["config"]["sources"])}
    if note is None or len(blocks) != len(note.parts) or not {file.source for file, _ in blocks} <= names.keys():
        return f"{out.where(PARTS)}, which says which encoded parts belong to the inputs, is gone or damaged"
    where = _allowed(out, note.cache)
    if where is None:
        return f"the cache is gone: packtrain has not marked {note.cache} as a cache"
    cache = open_store(where)
    try:
        sizes = ask_all(cache, lambda part: cache.size(part.file.name), note.parts)
    except StoreError as error:
        return f"the cache cannot be read: {error}"
    parts: list[NotedPart] = []
    first = 0
    for (file, block), part, size in zip(blocks, note.parts, sizes, strict=True):
        if size != part.file.bytes:
            return f"the cache is gone: {cache.where(part.file.name)} is missing or damaged"
        place = PartPlace(cache, part.file, names[file.source], file.lines_of(block), part.contaminated)
        parts.append(NotedPart(place, file, block, first, part.documents))
        first += part.documents
    return cache, parts


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


def _read(out: Store, name: str, kind: type[_Note]) -> _Note | None:
    """A note; None also if the store does not answer."""
    try:
        return get_note(out, name, kind)
    except StoreError:
        return None
