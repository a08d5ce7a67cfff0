"""Reads the manifest; a dataset is finished if and only if it has one. Cheap to import."""

import json
import os
from pathlib import Path

from ...schemas.errors import IntegrityError
from ...schemas.jsontext import parse_json
from ...schemas.manifest import Manifest
from ...schemas.names import MANIFEST
from ..store.local import LocalStore, check_tree
from ..store.open_store import Store, open_store, resolve_place

_OWN = (MANIFEST, "_run", "export.json")
"""At least one of these is in each folder that packtrain has written to."""


def open_output(folder: str | Path) -> Store:
    """Open the store of a folder that a run wrote, given by path or URL.

    All code that reads or repairs a dataset opens it here. The check here, together with the names that `Manifest`
    refuses, makes sure that no path leads out of the folder and that every file in it is a regular file.

    Raises:
        IntegrityError: the folder contains a link that leads out, a named pipe or the like.
    """
    store = open_store(resolve_place(str(folder), Path.cwd()))
    # Of another folder nothing is read, and what it holds is not for packtrain to judge.
    if isinstance(store, LocalStore) and any(os.path.lexists(store.root / name) for name in _OWN):
        check_tree(store.root)
    return store


def read_manifest(store: Store) -> Manifest | None:
    """The manifest of a finished dataset, or None.

    Raises:
        IntegrityError: the manifest cannot be read, or its hash does not match its content.
    """
    data = store.read(MANIFEST)
    if data is None:
        return None
    try:
        content = parse_json(data)
        manifest = Manifest.from_json(content)
        whole = manifest.hash == content.get("hash")  # a text that is not Unicode has no hash
    except (ValueError, TypeError) as error:
        what = f"a manifest of this version of packtrain ({error})"
        if isinstance(error, json.JSONDecodeError):
            what = f"JSON ({error})"
        raise IntegrityError(
            f"{store.where(MANIFEST)} is not {what}; delete it, and run the dataset's configuration again, which makes "
            "only what is missing"
        ) from error
    if not whole:
        raise IntegrityError(
            f"{store.where(MANIFEST)} was changed after it was written: its hash does not match its content; delete "
            "it, and run the dataset's configuration again, which makes only what is missing"
        )
    return manifest
