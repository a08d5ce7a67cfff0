"""Inputs that are not files of this machine: remote files, and datasets in memory. Each is found, and copied into the
cache before it is cut.
"""

import glob
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from ...schemas.config.config import RunConfig, SourceConfig
from ...schemas.errors import ConfigError, InputError
from ...schemas.escape import without_secrets
from ...schemas.files.copy_cache import Copies
from ...schemas.files.remote import Remote, RemoteError, describe_error
from ...schemas.files.remote_clients import filesystem
from ...schemas.files.web import WEB_PROTOCOLS, open_web
from ...schemas.fingerprint import fingerprint, hash_to_bytes
from ..store.local import Draft, LocalStore
from .blocks import FoundInput
from .file_kinds import data_files
from .hub import choose_split

_FIND_ATTEMPTS = 3
"""Attempts to find a file; few, so that a misspelt name is reported quickly."""
_VERSION_KEYS = (
    "ETag",
    "etag",
    "e_tag",
    "md5Hash",
    "md5",
    "sha256",
    "version_id",
    "VersionId",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
    "Last-Modified",
    "oid",
)
"""Keys of metadata whose values change with a file, as the many clients of fsspec and web servers call them."""
_DATA_FOLDER = "data"
"""The cache folder of datasets in memory."""
_BATCH_ROWS = 1_000
"""Rows of a record batch, so that the bytes do not depend on how a dataset is chunked."""


def find_urls(text: str, where: str) -> list[FoundInput]:
    """The files of a URL: itself, the matches of a pattern, or a folder's files.

    Raises:
        ConfigError: there is none, or fsspec does not know the protocol.
        InputError: the store cannot be reached.
    """
    try:
        # "" is the URL itself.
        inputs = Remote(text, attempts=_FIND_ATTEMPTS).ask("", lambda: _find_files(text))
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no file {without_secrets(text)}; check the spelling") from None
    except RemoteError as error:
        raise _unreachable(f"{where}: {without_secrets(text)}", error) from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not inputs:
        raise ConfigError(f"{where}: no data files match {without_secrets(text)}; check the pattern")
    return inputs


def _unreachable(place: str, error: Exception) -> InputError:
    """The error for a place that cannot be read. A RemoteError's cause, the client's own error, says more than it."""
    return InputError(
        f"{place} cannot be reached or read ({describe_error(error.__cause__ or error)}); check the connection, the "
        "name and the rights, or copy the file and name the copy"
    )


def _find_files(url: str) -> list[FoundInput]:
    """As `find_urls`, which asks again if this fails; an empty list if a pattern or a folder has no data files."""
    if urlsplit(url).scheme in WEB_PROTOCOLS:
        with open_web(url) as response:
            return [_found_input(url, response.length, dict(response.headers))]
    fs, path = filesystem(url)
    inputs = []
    for name, metadata in _file_metadata(fs, path).items():
        url_of_file = fs.unstrip_protocol(name)  # `s3://bucket/a.jsonl` of `bucket/a.jsonl`
        inputs.append(_found_input(url_of_file, metadata.get("size"), metadata))
    return inputs


def _found_input(url: str, size: int | None, metadata: dict[str, Any]) -> FoundInput:
    """A file at a URL as an input.

    Args:
        size: bytes, or None if the server does not say.
        metadata: what the server says of the file; some values change with its content.
    """
    versions = [f"{key}={metadata[key]}" for key in _VERSION_KEYS if metadata.get(key) is not None]
    # `fetch` refuses a file whose size or stamp is unknown: nothing would show that its copy is outdated.
    stamp = 0
    if versions:
        # 7 bytes, so that it fits into any integer of 64 bits.
        stamp = int.from_bytes(hash_to_bytes("\n".join(versions).encode(), 7))
    if size is None:
        size = -1
    return FoundInput(url, int(size), stamp, origin=without_secrets(url))


def _file_metadata(fs: Any, path: str) -> dict[str, dict[str, Any]]:
    """Path of a file → what its store says of it, for each file that the path, pattern or folder names."""
    if glob.has_magic(path):
        matches = sorted(fs.glob(path, detail=True).items())
        return {name: metadata for name, metadata in matches if metadata["type"] == "file"}
    info = fs.info(path)
    if info["type"] == "file":
        return {path: info}
    if info["type"] != "directory":
        raise ConfigError(f"{path} is not a regular file; write its rows to a file, and name that")
    all_files = fs.find(path, detail=True)
    return {name: all_files[name] for name in data_files(path, sorted(all_files))}


def fetch(entry: FoundInput, cache: Path) -> Path:
    """The cache's copy of a URL's file, made if it is missing.

    Raises:
        InputError: it cannot be read, or its server does not say how large it is and when it changed.
        StoreError: the cache cannot be written, or the disk is full.
    """
    url = entry.name
    size = entry.size
    if size < 0 or not entry.stamp:
        raise InputError(
            f"{without_secrets(url)}: its server does not say how large it is and when it changed, so that a copy "
            "cannot be checked; download it, and name the copy"
        )
    try:
        # A changed file has another stamp, and so another copy.
        key = fingerprint([url, size, entry.stamp])
        # "" is the URL itself, and None says that no hash of the content is known.
        return Copies(cache).copy(key, size, lambda path: Remote(url).download("", path, size, hash=None))
    except (FileNotFoundError, RemoteError) as error:
        raise _unreachable(without_secrets(url), error) from error


# Datasets in memory: each is written under a hash of its content, and is a file like any other from then on


def describe_data(name: str) -> str:
    """What messages call a dataset in memory: what the user wrote."""
    return f'data["{name}"]'


def write_data(config: RunConfig, data: Mapping[str, Any], cache: LocalStore) -> RunConfig:
    """Write the datasets into the cache, and return the configuration with the written files as their sources' `path`.

    A `datasets.DatasetDict` gives the split that its source names, or its only one; a `datasets.IterableDataset`, which
    may have no end, as many rows as the source's `max_rows`.

    Args:
        data: name of a source → its dataset.

    Raises:
        ConfigError: a value is no dataset, or has a transform, which may give other rows each time; or its source says
            neither which split nor how many rows to take, where that is needed.
        StoreError: the cache cannot be written.
    """
    sources = [
        _with_data(source, data[source.name], cache) if source.name in data else source for source in config.sources
    ]
    return config.model_copy(update={"sources": tuple(sources)})


def _with_data(source: SourceConfig, data: Any, cache: LocalStore) -> SourceConfig:
    """Write one dataset, and return its source with the written file as `path`."""
    import datasets

    where = describe_data(source.name)
    split = source.split
    if isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
        split = choose_split(
            list(map(str, data)),
            configured=split,
            where=f"sources.{source.name}.path",
            dataset=f"{where}, a DatasetDict,",
        )
        data = data[split]
    elif split is not None:
        raise ConfigError(f"sources.{source.name}.split: {where} is one dataset, without splits; leave it out")
    if isinstance(data, datasets.IterableDataset):
        if source.max_rows is None:
            raise ConfigError(
                f"{where} is an IterableDataset, which may have no end; say how many of its rows to take with max_rows "
                "of its source, or give a datasets.Dataset"
            )
        place = _write_json_lines(source.name, data.take(source.max_rows), cache)
    elif isinstance(data, datasets.Dataset):
        if data.format["type"] == "custom":
            raise ConfigError(
                f"{where} has a transform that is applied when a row is read (set_transform), so that a row may be "
                "another one each time; apply it with dataset.map, or take it off with dataset.reset_format()"
            )
        place = _write_arrow(source.name, data, cache)
    else:
        raise ConfigError(
            f"{where} is of type {type(data).__name__}; give a datasets.Dataset, DatasetDict or IterableDataset, such "
            "as datasets.Dataset.from_list(rows)"
        )
    return source.model_copy(update={"path": (str(cache.path(place)),), "split": None})


def _write_json_lines(name: str, rows: Iterable[Mapping[str, Any]], cache: LocalStore) -> str:
    """Write the rows of a dataset without a schema as lines of JSON, and return their name in the cache.

    Raises:
        ConfigError: a value has no form in JSON.
    """
    with cache.draft() as draft:
        try:
            for row in rows:
                draft.file.write(msgspec.json.encode(row) + b"\n")
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"{describe_data(name)} has a value without a form in JSON ({error}); remove its column with "
                "dataset.remove_columns"
            ) from error
        return _put_by_hash(cache, draft, f"{name}.jsonl")


def _write_arrow(name: str, dataset: Any, cache: LocalStore) -> str:
    """Write a dataset as an Arrow stream, and return its name in the cache."""
    # Neither metadata nor chunks, so that equal rows are equal bytes, and get the same name.
    schema = dataset.features.arrow_schema.remove_metadata()
    with cache.draft() as draft:
        with pa.ipc.new_stream(pa.PythonFile(draft.file, mode="w"), schema) as stream:
            for table in dataset.with_format("arrow").iter(_BATCH_ROWS):
                stream.write_table(table.replace_schema_metadata(None).cast(schema).combine_chunks())
        return _put_by_hash(cache, draft, f"{name}.arrow")


def _put_by_hash(cache: LocalStore, draft: Draft, file_name: str) -> str:
    """Give a draft a name in the cache that has its hash, and return the name."""
    place = f"{_DATA_FOLDER}/{draft.size_and_hash.hash}/{file_name}"
    # A file that is there stays, with its time, by which the scan sees that it need not be read again.
    if cache.hash(place) != draft.size_and_hash:
        cache.put(draft, place)
    return place
