"""The small files by which `datasets.load_from_disk` opens a folder of Arrow streams, made without importing it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...schemas.dataset.manifest import SplitRecord
from ...schemas.fingerprint import fingerprint


def huggingface_files(splits: Mapping[str, SplitRecord], schema: pa.Schema, plan: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the files: dataset_info.json and state.json of each split, and with several splits
    dataset_dict.json.

    Args:
        schema: the rows' schema; every column is a list.
        plan: fingerprint of what the dataset was made from.
    """
    for split, record in splits.items():
        # Of one split, the dataset's folder is the dataset; of several, each has a folder, and a dict names them.
        folder = f"{split}/" if len(splits) > 1 else ""
        names = [shard.name.removeprefix(folder) for shard in record.shards]
        for name, content in split_files(schema, names, split, plan):
            yield folder + name, content
    if len(splits) > 1:
        yield "dataset_dict.json", _json({"splits": sorted(splits)})


def split_files(schema: pa.Schema, names: Sequence[str], split: str, origin: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of dataset_info.json and state.json of a folder with one split.

    Args:
        schema: the rows' schema; a column is a list or a number.
        names: of its Arrow files.
        origin: fingerprint of what the rows were made from.
    """
    features: dict[str, dict[str, Any]] = {}
    for field in schema:
        if pa.types.is_list(field.type):
            # `Sequence` is a type that every version of datasets understands.
            features[field.name] = {"feature": _value(field.type.value_type), "_type": "Sequence"}
        else:
            features[field.name] = _value(field.type)
    yield "dataset_info.json", _json({"features": features})
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": fingerprint([origin, split])[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    yield "state.json", _json(state)


def _value(kind: pa.DataType) -> dict[str, Any]:
    """How `datasets` writes the type of one number."""
    return {"dtype": str(kind), "_type": "Value"}


def _json(value: object) -> bytes:
    """JSON whose bytes depend on the value alone, because the manifest has the hash of these files."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
