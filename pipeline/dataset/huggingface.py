"""Write the small files by which `datasets.load_from_disk` opens a folder of Arrow streams, without importing it."""

import json

import pyarrow as pa

from ...schemas.manifest import SplitRecord


def dataset_info(schema: pa.Schema) -> bytes:
    """The content of dataset_info.json. It uses the type `Sequence`, which every version of datasets understands.

    Args:
        schema: the rows' schema; every column is a list.
    """
    kinds = {field.name: {"dtype": str(field.type.value_type), "_type": "Value"} for field in schema}
    return _json({"features": {name: {"feature": kind, "_type": "Sequence"} for name, kind in kinds.items()}})


def dataset_state(split: str, folder: str, record: SplitRecord, fingerprint: str) -> bytes:
    """The content of state.json: the shards in order, and a fingerprint of what the dataset was made from.

    Args:
        folder: the split's folder below the output: "", or its name and a slash; file names are relative to it.
    """
    return _json(
        {
            "_data_files": [{"filename": shard.name.removeprefix(folder)} for shard in record.shards],
            "_fingerprint": fingerprint[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": split,
        }
    )


def dataset_dict(splits: list[str]) -> bytes:
    """The content of dataset_dict.json, for several splits."""
    return _json({"splits": splits})


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
