"""`pack_dataset` gives what `trl.pack_dataset` gives for a window of the whole dataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from packtrain.pipeline.pack_dataset import pack_dataset
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.schemas.tables.strategies import StrategyName

STRATEGIES: tuple[StrategyName, ...] = ("bfd", "bfd_split", "wrapped")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def random_examples(seed: int, number: int = 300, longest: int = 40) -> dict[str, list[list[int]]]:
    """Documents with many equal lengths, some empty and some longer than the rows of the tests."""
    random = np.random.default_rng(seed)
    ids = [random.integers(0, 1000, n).tolist() for n in random.integers(0, longest, number)]
    return {"input_ids": ids, "labels": [[-100 if t % 3 else t for t in row] for row in ids]}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ids", [[], [[], [], []]])
def test_nothing_to_pack(strategy: StrategyName, ids: list[list[int]]) -> None:
    packed = pack_dataset(Dataset.from_dict({"input_ids": ids}), 4, strategy)
    columns = ["input_ids"] if strategy == "wrapped" else ["input_ids", "seq_lengths"]
    assert (len(packed), packed.column_names) == (0, columns)


def test_empty_and_missing_documents_are_skipped() -> None:
    ids = pa.array([[], [1, 2], None, [3], []], type=pa.list_(pa.int32()))
    for strategy in ("bfd", "bfd_split"):
        packed = pack_dataset(Dataset(pa.table({"input_ids": ids})), 4, strategy)
        assert packed[:] == {"input_ids": [[1, 2, 3]], "seq_lengths": [[2, 1]]}


# --- TRL as the oracle ---


def both(dataset: Dataset, length: int, strategy: StrategyName) -> tuple[Any, Any]:
    trl = pytest.importorskip("trl")
    packed = pack_dataset(dataset, length, strategy)
    return packed, trl.pack_dataset(dataset, length, strategy, {"batch_size": len(dataset)})


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("length", [7, 64])
def test_as_trl_when_it_is_handed_everything(strategy: StrategyName, length: int) -> None:
    dataset = Dataset.from_dict(random_examples(length))
    ours, theirs = both(dataset, length, strategy)
    assert len(ours) > 20
    assert ours.features == theirs.features
    assert ours[:] == theirs[:]


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", [pa.int8(), pa.float32(), pa.bool_(), pa.string()])
def test_as_trl_for_other_types(wide: bool, dtype: pa.DataType) -> None:
    random = np.random.default_rng(7)
    rows = [random.integers(0, 100, n).tolist() for n in random.integers(0, 20, 80)]
    lists = pa.large_list if wide else pa.list_
    table = pa.table(
        {
            "input_ids": pa.array(rows, type=lists(pa.int32())),
            "other": pa.array(rows, type=lists(pa.int64())).cast(lists(dtype)),
        }
    )
    ours, theirs = both(Dataset(table), 16, "bfd_split")
    assert len(ours) > 20
    assert ours.data.column("other").type == lists(dtype)
    assert ours[:] == theirs[:]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_as_trl_on_selected_rows_and_many_chunks(strategy: StrategyName) -> None:
    """Tables that are slices, made of chunks, or read through a selection of rows."""
    whole = Dataset.from_dict(random_examples(3))
    parts = datasets.concatenate_datasets([Dataset.from_dict(random_examples(i, 20)) for i in range(12)])
    assert len(parts.data.column("input_ids").chunks) == 12
    sliced = Dataset(whole.data.table.slice(37, 150))
    shuffled = whole.shuffle(seed=1)
    assert shuffled._indices is not None
    for dataset in (parts, sliced, shuffled, whole.select(range(50, 200)), parts.shuffle(seed=2)):
        ours, theirs = both(dataset, 16, strategy)
        assert len(ours) > 20
        assert ours[:] == theirs[:]


@pytest.mark.slow
@pytest.mark.parametrize("style", [None, "numpy", "arrow"])
def test_format_is_kept_as_trl_keeps_it(style: str | None) -> None:
    dataset = Dataset.from_dict(random_examples(4)).with_format(style, columns=["input_ids"])
    ours, theirs = both(dataset, 16, "bfd")
    assert ours.format == theirs.format
    assert type(ours[0]) is type(theirs[0])
    assert ours.with_format(None)[:] == theirs.with_format(None)[:]


# --- all rows together ---


def test_a_dataset_is_packed_as_a_whole() -> None:
    dataset = Dataset.from_dict({"input_ids": [[1] * 3] * 1500 + [[2]] * 1500})
    packed = pack_dataset(dataset, 4)
    assert len(packed) == 1500  # in windows of 1,000 the threes and the ones hardly meet
    assert packed["seq_lengths"][:] == [[3, 1]] * 1500


def test_on_disk_it_is_cached_by_what_it_depends_on(tmp_path: Path) -> None:
    Dataset.from_dict(random_examples(9)).save_to_disk(tmp_path / "data")
    dataset = datasets.load_from_disk(tmp_path / "data")
    first = pack_dataset(dataset, 16)
    assert first.cache_files, "a dataset on disk is packed to disk"
    assert pack_dataset(dataset, 16).cache_files == first.cache_files
    others = [pack_dataset(dataset, 17), pack_dataset(dataset, 16, "bfd_split")]
    others.append(pack_dataset(dataset.select_columns(["input_ids"]), 16))
    files = [first.cache_files[0]["filename"], *(other.cache_files[0]["filename"] for other in others)]
    assert len(set(files)) == 4


# --- refusals ---


def test_columns_that_cannot_be_packed() -> None:
    flat = Dataset.from_dict({"input_ids": [[1], [2]], "text": ["a", "b"]})
    uneven = Dataset.from_dict({"input_ids": [[1], [2, 3]], "labels": [[1], [2]]})
    with pytest.raises(InputError, match="column 'text': holds string"):
        pack_dataset(flat, 4)
    with pytest.raises(InputError, match="'input_ids' and 'labels': row 1 has lists of 2 and 1 elements"):
        pack_dataset(uneven, 4)
    with pytest.raises(InputError, match="has no columns"):
        pack_dataset(Dataset.from_dict({}), 4)


def test_options_that_cannot_be() -> None:
    dataset = Dataset.from_dict(random_examples(1))
    with pytest.raises(ConfigError, match="strategy: 'ffd'"):
        pack_dataset(dataset, 4, "ffd")
    with pytest.raises(ConfigError, match="max_length: 1 "):
        pack_dataset(DatasetDict(), 1)
    with pytest.raises(InputError, match="IterableDataset cannot be packed"):
        pack_dataset(dataset.to_iterable_dataset(), 4)
