"""The small files by which `datasets.load_from_disk` opens a folder of Arrow streams, made without importing it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from ...schemas.fingerprint import fingerprint
from ...schemas.manifest import SplitRecord


def huggingface_files(splits: Mapping[str, SplitRecord], schema: pa.Schema, plan: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of dataset_info.json and state.json of each split; and of dataset_dict.json, for several.

    Args:
        schema: the rows' schema; every column is a list.
        plan: fingerprint of what the dataset was made from.
    """
    kinds = {field.name: {"dtype": str(field.type.value_type), "_type": "Value"} for field in schema}
    # `Sequence` is a type that every version of datasets understands.
    features = {name: {"feature": kind, "_type": "Sequence"} for name, kind in kinds.items()}
    for split, record in splits.items():
        folder = f"{split}/" if len(splits) > 1 else ""
        yield f"{folder}dataset_info.json", _json({"features": features})
        state: dict[str, Any] = {
            "_data_files": [{"filename": shard.name.removeprefix(folder)} for shard in record.shards],
            "_fingerprint": fingerprint([plan, split])[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": split,
        }
        yield f"{folder}state.json", _json(state)
    if len(splits) > 1:
        yield "dataset_dict.json", _json({"splits": sorted(splits)})


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
