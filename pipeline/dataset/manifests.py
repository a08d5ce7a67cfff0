"""The manifest, whose presence alone means that a dataset is finished. Cheap to import."""

from pathlib import Path

from ...schemas.errors import IntegrityError
from ...schemas.jsontext import parse_json
from ...schemas.manifest import Manifest
from ..store.local import LocalStore, check_tree
from ..store.open import Store, open_store, resolve_place

MANIFEST = "manifest.json"


def open_output(folder: str | Path) -> Store:
    """The store of a folder that a run wrote, given by path or URL.

    Everything that reads or repairs a dataset opens it here. This check, and the names that `Manifest` refuses, make
    sure that no path leads out of the folder, and that everything in it is a regular file.

    Raises:
        IntegrityError: the folder contains a link that leads out, a named pipe or the like.
    """
    store = open_store(resolve_place(str(folder), Path.cwd()))
    if isinstance(store, LocalStore):
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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"{store.where(MANIFEST)} is not a manifest of this version of packtrain ({error!r}); "
            "`packtrain repair` rebuilds it; or restore it, or delete the folder and run again"
        ) from error
    if manifest.hash != content.get("hash"):
        raise IntegrityError(
            f"{store.where(MANIFEST)} was changed after it was written: its hash does not match its content; "
            "`packtrain repair` rebuilds it; or restore it, or delete the folder and run again"
        )
    return manifest
