"""Datasets in memory as sources: each is written once into the cache, under a hash of its content, and is a file like
any other from then on.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError
from ..store.local import LocalStore

FOLDER = "data"
"""The cache folder of the files."""
_BATCH_ROWS = 1_000
"""Rows of a record batch, so that the bytes do not depend on how the dataset is chunked."""


def called(name: str) -> str:
    """What messages call a dataset: what the user wrote."""
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
    paths = {name: str(cache.path(_write(name, dataset, cache))) for name, dataset in data.items()}
    sources = (
        source.model_copy(update={"path": (paths[source.name],)}) if source.name in paths else source
        for source in config.sources
    )
    return config.model_copy(update={"sources": tuple(sources)})


def _write(name: str, dataset: Any, cache: LocalStore) -> str:
    """Write a dataset as an Arrow stream, unless the cache has it, and return its name there."""
    schema = dataset.features.arrow_schema.remove_metadata()
    with cache.draft(FOLDER) as draft:
        with pa.ipc.new_stream(pa.PythonFile(draft.file, mode="w"), schema) as stream:
            for table in dataset.with_format("arrow").iter(_BATCH_ROWS):
                stream.write_table(table.replace_schema_metadata(None).cast(schema).combine_chunks())
        place = f"{FOLDER}/{draft.result.hash}/{name}.arrow"
        if cache.hash(place) != draft.result:  # else its time stays, and it is not scanned again
            cache.put(draft, place)
    return place
