"""The manifest of a finished dataset: the one thing that says that it is finished. Cheap to import."""

from pathlib import Path

from ..schemas.errors import IntegrityError
from ..schemas.jsontext import parse_json
from ..schemas.manifest import Manifest
from .store import LocalStore, check_tree
from .stores import Store, open_store, resolve_place

MANIFEST = "manifest.json"


def open_output(folder: str | Path) -> Store:
    """The store of a folder that a run wrote, as a person named it, or its URL.

    Whoever reads or repairs a dataset comes through here. Together with the names that `Manifest` refuses, it keeps
    them inside: nothing that stands there leads out of the folder, and everything is a regular file.

    Raises:
        IntegrityError: something in it is a link that leads out, a named pipe or the like.
    """
    store = open_store(resolve_place(str(folder), Path.cwd()))
    if isinstance(store, LocalStore):
        check_tree(store.root)
    return store


def read_manifest(store: Store) -> Manifest | None:
    """The manifest of a finished dataset, or None.

    Raises:
        IntegrityError: there is one that cannot be read, or whose hash is not its content's.
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
            "`packtrain repair` makes it again; or restore it, or delete the folder and run again"
        ) from error
    if manifest.hash != content.get("hash"):
        raise IntegrityError(
            f"{store.where(MANIFEST)} was changed after it was written: its hash is not its content's; "
            "`packtrain repair` makes it again; or restore it, or delete the folder and run again"
        )
    return manifest
