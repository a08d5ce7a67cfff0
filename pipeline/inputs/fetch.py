"""Inputs that are not files of this machine: remote files, and datasets in memory. Each is found, and copied into the
cache before it is cut.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import blake3
import pyarrow as pa

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError, InputError
from ...schemas.files.copy_cache import Copies
from ...schemas.files.remote import Remote, RemoteError, describe, filesystem, shown
from ...schemas.files.web import WEB, open_web
from ...schemas.fingerprint import fingerprint
from ..store.local import LocalStore
from .blocks import Found
from .file_kinds import data_files

_LOOKS = 3
"""Attempts to find a file; few, so that a misspelt name is reported quickly."""
_MARKS = ("ETag", "etag", "e_tag", "md5Hash", "md5", "sha256", "version_id", "VersionId", "mtime", "LastModified",
          "last_modified", "updated", "created", "Last-Modified", "oid")  # fmt: skip
_IN_MEMORY = "data"
"""The cache folder of datasets in memory."""
_BATCH_ROWS = 1_000
"""Rows of a record batch, so that the bytes do not depend on how a dataset is chunked."""


def find_urls(text: str, where: str) -> list[Found]:
    """The files of a URL: itself, the matches of a pattern, or a folder's files.

    Raises:
        ConfigError: there is none, or fsspec does not know the protocol.
        InputError: the store cannot be reached.
    """
    try:
        found = Remote(text, attempts=_LOOKS).ask("", lambda: _look(text))
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no file {shown(text)}; check the spelling") from None
    except RemoteError as error:
        raise _unreachable(f"{where}: {shown(text)}", error) from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not found:
        raise ConfigError(f"{where}: no data files match {shown(text)}; check the pattern")
    return found


def _unreachable(what: str, error: Exception) -> InputError:
    return InputError(
        f"{what} cannot be reached or read ({describe(error.__cause__ or error)}); check the connection, the name and "
        "the rights, or copy the file and name the copy"
    )


def _look(url: str) -> list[Found]:
    """See `find_urls`."""
    if urlsplit(url).scheme in WEB:
        with open_web(url) as answer:
            return [_found(url, answer.length, dict(answer.headers))]
    fs, path = filesystem(url)
    return [_found(fs.unstrip_protocol(name), info.get("size"), info) for name, info in _infos(fs, path).items()]


def _found(url: str, size: int | None, about: dict[str, Any]) -> Found:
    marks = [f"{key}={about[key]}" for key in _MARKS if about.get(key) is not None]
    stamp = int.from_bytes(blake3.blake3("\n".join(marks).encode()).digest(7)) if marks else 0
    return Found(url, -1 if size is None else int(size), stamp, origin=shown(url))


def _infos(fs: Any, path: str) -> dict[str, dict[str, Any]]:
    """The store's metadata of each file, by its path."""
    if set("*?[") & set(path):
        return {name: info for name, info in sorted(fs.glob(path, detail=True).items()) if info["type"] == "file"}
    info = fs.info(path)
    if info["type"] == "file":
        return {path: info}
    if info["type"] != "directory":
        raise ConfigError(f"{path} is not a regular file; write its rows to a file, and name that")
    every = fs.find(path, detail=True)
    return {name: every[name] for name in data_files(path, sorted(every))}


def fetch(found: Found, cache: Path) -> Path:
    """The cache's copy of a URL's file, made if it is missing.

    Raises:
        InputError: it cannot be read, or its server does not say how large it is and when it changed.
        StoreError: the cache cannot be written, or the disk is full.
    """
    url, size, stamp = found.name, found.size, found.stamp
    if size < 0 or not stamp:
        raise InputError(
            f"{shown(url)}: its server does not say how large it is and when it changed, so that a copy cannot be "
            "checked; download it, and name the copy"
        )
    try:
        return Copies(cache).copy(
            fingerprint([url, size, stamp]), size, lambda path: Remote(url).download("", path, size, None)
        )
    except (FileNotFoundError, RemoteError) as error:
        raise _unreachable(shown(url), error) from error


# Datasets in memory: each is written under a hash of its content, and is a file like any other from then on


def called(name: str) -> str:
    """What messages call a dataset in memory: what the user wrote."""
    return f'data["{name}"]'


def written(config: RunConfig, data: Mapping[str, Any], cache: LocalStore) -> RunConfig:
    """Write the datasets, and return the configuration with their files as the paths of the sources of these names.

    Raises:
        ConfigError: a value is no `datasets.Dataset`.
        StoreError: the cache cannot be written.
    """
    import datasets

    for name, dataset in data.items():
        if not isinstance(dataset, datasets.Dataset):
            raise ConfigError(
                f"{called(name)} is of type {type(dataset).__name__}; give a datasets.Dataset, such as one split of a "
                "DatasetDict, or datasets.Dataset.from_list(rows)"
            )
    paths = {name: (str(cache.path(_write(name, dataset, cache))),) for name, dataset in data.items()}
    sources = (one.model_copy(update={"path": paths.get(one.name, one.path)}) for one in config.sources)
    return config.model_copy(update={"sources": tuple(sources)})


def _write(name: str, dataset: Any, cache: LocalStore) -> str:
    """Write a dataset as an Arrow stream, unless the cache has it, and return its name there."""
    schema = dataset.features.arrow_schema.remove_metadata()
    with cache.draft() as draft:
        with pa.ipc.new_stream(pa.PythonFile(draft.file, mode="w"), schema) as stream:
            for table in dataset.with_format("arrow").iter(_BATCH_ROWS):
                stream.write_table(table.replace_schema_metadata(None).cast(schema).combine_chunks())
        place = f"{_IN_MEMORY}/{draft.result.hash}/{name}.arrow"
        if cache.hash(place) != draft.result:  # else its time stays, and it is not scanned again
            cache.put(draft, place)
    return place
