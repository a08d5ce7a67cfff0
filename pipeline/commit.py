"""The last step of a run: what makes its folder a dataset, the manifest last."""

import hashlib
from typing import Any

import pyarrow as pa

from ..schemas.config import RunConfig
from ..schemas.errors import IntegrityError
from ..schemas.fingerprint import fingerprint, hash_bytes
from ..schemas.manifest import FileRecord, Manifest
from .huggingface import dataset_dict, dataset_info, dataset_state
from .outfolder import MANIFEST
from .packing import Packed
from .stores import Store


def commit(
    store: Store, config: RunConfig, plan: dict[str, Any], packed: Packed, rejects: FileRecord, schema: pa.Schema
) -> Manifest:
    """Write what `datasets` reads a folder by, then the manifest.

    Args:
        plan: what the written bytes depend on.
        rejects: the file of them, which is written already, as the shards are.
        schema: of the shards.

    Raises:
        IntegrityError: the same plan gave another manifest before.
    """
    plan_hash = fingerprint(plan)
    files = [packed.documents, *packed.row_sizes, rejects]
    if config.output.format == "arrow":
        several = len(packed.splits) > 1
        for split, record in packed.splits.items():
            folder = f"{split}/" if several else ""
            mark = fingerprint([plan_hash, split])
            files.append(put_record(store, f"{folder}dataset_info.json", dataset_info(split, record, schema)))
            files.append(put_record(store, f"{folder}state.json", dataset_state(split, folder, record, mark)))
        if several:
            files.append(put_record(store, "dataset_dict.json", dataset_dict(sorted(packed.splits))))
    manifest = Manifest(
        plan_hash=plan_hash,
        plan=plan,
        schema={field.name: str(field.type) for field in schema},
        splits=packed.splits,
        files=tuple(sorted(files, key=lambda file: file.name)),
        ledger=packed.ledger,
    )
    data = manifest.to_bytes()
    store.sweep()  # of workers that died
    if not store.put_bytes(MANIFEST, data) and store.read(MANIFEST) != data:
        raise IntegrityError(
            f"the run is not deterministic: {store.where(MANIFEST)} was written before with other content; "
            "please report it with the configuration"
        )
    return manifest


def put_record(store: Store, name: str, data: bytes) -> FileRecord:
    """Write a small file, in place of another content, and give its entry in the manifest."""
    if not store.put_bytes(name, data) and store.read(name) != data:
        store.replace_bytes(name, data)
    return FileRecord(name, len(data), hash_bytes(data), hashlib.sha256(data).hexdigest())
