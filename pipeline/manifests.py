"""The manifest of a finished dataset: the one thing that says that it is finished. Cheap to import."""

from ..schemas.errors import IntegrityError
from ..schemas.jsontext import parse_json
from ..schemas.manifest import Manifest
from .stores import Store

MANIFEST = "manifest.json"


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
