"""Writes a run's notes about itself, and reads them back for repair, `inspect`, reports and the next run.

`run.json` says what was asked for and where its parts are, `parts.json` how the inputs were cut into blocks and which
encoded part each became. They are not part of the dataset, and hold paths. Another person may have written them, so
they are not trusted: they are used only if their hashes agree with the plan, the parts and finally the manifest. Code
that they name is not run, URLs that they name are not fetched, and folders that they name are written only if packtrain
has marked them as a cache. For anything else the user must give the configuration.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError, PacktrainError, StoreError, TokenizerError
from ...schemas.fingerprint import fingerprint
from ...schemas.jsontext import decode_note
from ...schemas.names import check_hash, check_name, part_record
from ..contamination.evaluation import find_evaluation
from ..encode.encode_spec import EncodeSpec
from ..encode.parts import PartPlace
from ..encode.tokenizer import find_tokenizer
from ..inputs.blocks import Block, InputFile
from ..inputs.find import Found, InputKind, find_inputs
from ..inputs.user_reader import is_reader, reader_file
from ..store.cache_lock import is_cache
from ..store.checksummed import seal, unseal
from ..store.open import Store, StoredFile, ask_all, cache_beside, is_url, open_store

RUN = "_run/run.json"
PARTS = "_run/parts.json"
_Note = TypeVar("_Note", bound=msgspec.Struct)


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
            ConfigError: inputs are missing, and perhaps the tokenizer; the message names all of them.
            TokenizerError: only the tokenizer is missing.
        """
        *inputs, evaluation, folder = _find_all(config, base)
        files = [_stamped(found) for found in evaluation]
        for source, places in zip(config.sources, inputs, strict=True):
            files += [(source.name, source.split, source.subset), *map(_stamped, places)]
            if is_reader(source.format):
                files.append(_stamp(reader_file(source.format, base, f"sources.{source.name}.format")))
        files += [_stamp(path) for path in sorted(folder.iterdir()) if path.is_file()]
        template = config.tokenizer.chat_template
        if template and "{" not in template and (base / template).is_file():
            files.append(_stamp(base / template))
        tokenizer = config.tokenizer.model_dump(mode="json")
        return cls(fingerprint([config.identity(), tokenizer, files, version]), folder.absolute())


def _stamp(path: Path) -> tuple[Any, ...]:
    stat = path.stat()
    return str(path.absolute()), stat.st_size, stat.st_mtime_ns


def _stamped(found: Found) -> tuple[Any, ...]:
    """(path, size, modification time) of an input."""
    return str(found.path.absolute()) if found.kind is InputKind.LOCAL else found.shown, found.size, found.stamp


def _find_all(config: RunConfig, base: Path) -> list[Any]:
    """The inputs of every source, the evaluation files, and the tokenizer's folder."""
    finders: list[Callable[[], Any]] = [partial(find_inputs, source, base) for source in config.sources]
    section = config.decontaminate
    finders.append(partial(find_evaluation, section, base) if section is not None else list)
    finders.append(partial(find_tokenizer, config.tokenizer.path, base))
    found: list[Any] = []
    wrong: list[ConfigError | TokenizerError] = []
    for find in finders:
        try:
            found.append(find())
        except (ConfigError, TokenizerError) as error:
            wrong.append(error)
    if len(wrong) > 1:
        raise ConfigError("\n".join(map(str, wrong)))
    if wrong:
        raise wrong[0]
    return found


# What was asked for


class _Run(msgspec.Struct):
    asked: str
    """See `Request`."""
    base: str
    cache: str
    tokenizer: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """A run's configuration, and where its paths start."""

    config: RunConfig
    base: Path
    """Where relative paths of the configuration start."""
    cache: str
    """Full path or URL of the cache with the encoded parts."""


def remember(
    out: Store,
    config: RunConfig,
    base: Path,
    cache: Store,
    request: Request,
    files: Sequence[InputFile],
    places: Sequence[PartPlace],
) -> None:
    """Write what was asked for, how the inputs are cut into blocks, and the part of each block.

    Args:
        files: small ones joined, as their blocks are encoded.
        places: one for each block.
    """
    data = config.model_dump(mode="json")
    for source in data["sources"]:
        source["path"] = [without_secrets(path) for path in source["path"]]
    if config.decontaminate is not None:
        data["decontaminate"]["against"] = [without_secrets(path) for path in config.decontaminate.against]
    _write(out, RUN, _Run(request.asked, str(base.absolute()), cache.url, str(request.tokenizer), data))
    parts = [_Part(place.part, place.contaminated) for place in places]
    _write(out, PARTS, _Parts(cache.url, list(files), parts))


def is_asked_again(out: Store, request: Request) -> bool:
    """Whether the folder's last run had the same request."""
    note = _read(out, RUN, _Run)
    return note is not None and note.asked == request.asked


def recall(out: Store) -> RunOrigin | None:
    """Read the configuration that `remember` wrote; None if it is gone or damaged.

    Its cache is the noted one if `recall_cache` allows it, else the default place beside `out`.
    """
    note = _read(out, RUN, _Run)
    if note is None:
        return None
    try:
        config = RunConfig.model_validate(note.config)
    except ValueError:
        return None
    return RunOrigin(config, Path(note.base), recall_cache(out, note.cache) or cache_beside(out.url))


def tokenizer_folder(out: Store) -> Path | None:
    """The folder of the tokenizer that a run used; None if this machine does not have it."""
    note = _read(out, RUN, _Run)
    return Path(note.tokenizer) if note is not None and Path(note.tokenizer).is_dir() else None


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


def refuse_urls(config: RunConfig, what: str) -> None:
    """Refuse a noted configuration that names URLs.

    Raises:
        ConfigError: it names a URL; the message says what to do.
    """
    paths = [path for source in config.sources for path in source.path]
    evaluation = config.decontaminate.against if config.decontaminate is not None else ()
    for path in (*paths, *evaluation, config.tokenizer.path):
        if is_url(path):
            raise ConfigError(
                f"{what} names {without_secrets(path)}, which would have to be fetched. packtrain only fetches URLs "
                "that you name yourself: give the run's configuration with --config"
            )


# Blocks and parts


class _Part(msgspec.Struct):
    file: StoredFile
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
    """The inputs, with the blocks they were cut into. They themselves may be gone.

    The URLs of remote inputs are left out, so that a note cannot make packtrain fetch them.

    Args:
        plan: the dataset's; a note with other inputs counts as damaged.

    Returns:
        None of them if the note is gone or damaged.
    """
    note = _read(out, PARTS, _Parts)
    return _inputs(note, plan) if note is not None else []


def _inputs(note: _Parts, plan: Mapping[str, Any]) -> list[InputFile]:
    files = [replace(file, far=None) for group in note.files for file in (group.members or (group,))]
    planned = [(one["source"], one["file"], one["hash"]) for one in plan["inputs"]]
    return files if [(file.source, file.label, file.hash) for file in files] == planned else []


def recall_parts(out: Store, plan: Mapping[str, Any]) -> tuple[Store, list[NotedPart]] | str:
    """Return the cache and all parts that a finished run was packed from, in order; or why they are not available.

    The inputs must be those of the plan, and every part's record must agree with its block.
    """
    note = _read(out, PARTS, _Parts)
    if note is None or not _inputs(note, plan):
        return f"{out.where(PARTS)}, which says which encoded parts belong to the inputs, is gone or damaged"
    where = recall_cache(out, note.cache)
    if where is None:
        return f"the cache is gone: packtrain has not marked {note.cache} as a cache"
    cache = open_store(where)
    names = {source["name"]: index for index, source in enumerate(plan["config"]["sources"])}
    blocks = [(file, block) for file in note.files for block in file.blocks]
    if len(blocks) != len(note.parts) or not {file.source for file, _ in blocks} <= names.keys():
        return f"{out.where(PARTS)} does not match the manifest"

    def head(pair: tuple[tuple[InputFile, Block], _Part]) -> _Head | None:
        (_, block), part = pair
        try:
            found = decode_note(unseal(cache.read(part_record(part.file.name))), _Head)
            same = found.payload.block == block.hash and cache.size(part.file.name) == found.bytes
        except (StoreError, msgspec.MsgspecError):
            return None
        return found if same else None

    pairs = list(zip(blocks, note.parts, strict=True))
    parts: list[NotedPart] = []
    first = 0
    for ((file, block), part), found in zip(pairs, ask_all(cache, head, pairs), strict=True):
        if found is None:
            return f"the cache is gone: {cache.where(part.file.name)} is missing or damaged"
        place = PartPlace(cache, part.file, names[file.source], file.lines_of(block), part.contaminated)
        parts.append(NotedPart(place, replace(file, far=None), block, first, found.counts.examples))
        first += found.counts.examples
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


def _write(out: Store, name: str, note: msgspec.Struct) -> None:
    out.replace_bytes(name, seal(msgspec.json.encode(note, enc_hook=str)))


def _read(out: Store, name: str, kind: type[_Note]) -> _Note | None:
    """A note; None if it is gone or damaged."""
    try:
        data = unseal(out.read(name))
        return msgspec.json.decode(data or b"", type=kind, dec_hook=lambda _, text: Path(text))
    except (ValueError, TypeError, RecursionError, StoreError):
        return None
