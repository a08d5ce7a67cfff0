"""The last step of a run: write what makes the folder a dataset, with the manifest last."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ...schemas.dataset.manifest import FileRecord, Manifest
from ...schemas.dataset.names import MANIFEST
from ...schemas.errors import IntegrityError
from ...schemas.fingerprint import fingerprint, hash_bytes
from ..dataset.huggingface import huggingface_files
from ..observer import Observer
from ..pack.pack import Packed
from ..store.open_store import Store


def commit(
    store: Store, plan: dict[str, Any], packed: Packed, lists: Sequence[FileRecord], schema: pa.Schema
) -> Manifest:
    """Write the files by which `datasets` reads the folder, then the manifest.

    Args:
        plan: everything that the written bytes depend on.
        lists: the records of the lists of examples, such as rejects. Like the shards, they are already written.
        schema: the shards' schema.

    Raises:
        IntegrityError: an earlier run with the same plan wrote another manifest, which is left as it is.
    """
    files = [*packed.files, *lists]
    for name, content in huggingface_files(packed.splits, schema, fingerprint(plan)):
        files.append(put_record(store, name, content))
    manifest = Manifest(
        plan=plan,
        schema={field.name: str(field.type) for field in schema},
        splits=packed.splits,
        files=tuple(sorted(files, key=lambda file: file.name)),
        ledger=packed.ledger,
    )
    content = manifest.to_bytes()
    store.sweep()  # drafts that dead workers left
    # Last, because a folder with a manifest is a finished dataset. The same manifest may be there from another run that
    # shares the work, or of a dataset that is repaired.
    if not store.put_bytes(MANIFEST, content) and store.read(MANIFEST) != content:
        raise IntegrityError(
            f"the files do not match {store.where(MANIFEST)}, which is left as it is: the hash would be "
            f"{manifest.hash[:16]}; run the configuration with another --out, and please report it"
        )
    return manifest


def put_card(store: Store, manifest: Manifest, observer: Observer) -> None:
    """Write the dataset's README.md, unless there is one: it may be the user's. A failure is only noted, because the
    dataset is already finished.
    """
    from ..report.card import NAME, dataset_card

    try:
        if not store.exists(NAME):
            store.put_bytes(NAME, dataset_card(manifest))
    except Exception as error:  # of any kind: no error of a card may end a run that has succeeded
        observer.note(f"{store.where(NAME)} was not written ({type(error).__name__}: {error}); the data is complete")


def put_record(store: Store, name: str, content: bytes) -> FileRecord:
    """Write a small file, replacing different content, and return its manifest entry."""
    # `put_bytes` never replaces a file; equal content is left as it is.
    if not store.put_bytes(name, content) and store.read(name) != content:
        store.replace_bytes(name, content)
    return FileRecord(name, len(content), hash_bytes(content))
