"""`pack_dataset` gives what `trl.pack_dataset` gives for rows that both pack together."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict, IterableDatasetDict
from packtrain.pipeline import pack_dataset as hub
from packtrain.pipeline.pack_dataset import ColumnError, pack_dataset
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.stages.pack.plan import Strategy

STRATEGIES: tuple[Strategy, ...] = ("bfd", "bfd_split", "wrapped")

EXAMPLES = {
    "input_ids": [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10], [11]],
    "attention_mask": [[1, 1, 1, 0, 0], [1, 0], [1, 1, 0], [1]],
}


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


# --- rows small enough to check by eye ---


def test_bfd() -> None:
    packed = pack_dataset(Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5, 6, 7], [8]]}), 4)
    assert packed[:] == {"input_ids": [[4, 5, 6, 7], [1, 2, 3, 8]], "seq_lengths": [[4], [3, 1]]}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("map_kwargs", [None, {"batch_size": 2}])
@pytest.mark.parametrize("ids", [[], [[]], [[], [], []]])
def test_nothing_to_pack(strategy: Strategy, map_kwargs: dict[str, Any] | None, ids: list[list[int]]) -> None:
    packed = pack_dataset(Dataset.from_dict({"input_ids": ids}), 4, strategy, map_kwargs)
    columns = ["input_ids"] if strategy == "wrapped" else ["input_ids", "seq_lengths"]
    assert (len(packed), packed.column_names) == (0, columns)


def test_empty_and_missing_documents_are_skipped() -> None:
    ids = pa.array([[], [1, 2], None, [3], []], type=pa.list_(pa.int32()))
    for strategy in ("bfd", "bfd_split"):
        packed = pack_dataset(Dataset(pa.table({"input_ids": ids})), 4, strategy)
        assert packed[:] == {"input_ids": [[1, 2, 3]], "seq_lengths": [[2, 1]]}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_window_of_a_table_is_itself(strategy: Strategy) -> None:
    """Each window is a slice: what lies before its offset belongs to another one."""
    dataset = Dataset.from_dict({"input_ids": [[1, 1], [2, 2], [3, 3], [4, 4], [5]]})
    for kind in (dataset, dataset.to_iterable_dataset()):
        rows = [row["input_ids"] for row in pack_dataset(kind, 4, strategy, {"batch_size": 2})]
        assert rows == [[1, 1, 2, 2], [3, 3, 4, 4], [5]]


# --- TRL as the oracle ---


def both(dataset: Any, length: int, strategy: str, ours: Any = None, theirs: Any = None) -> tuple[Any, Any]:
    trl = pytest.importorskip("trl")
    packed = pack_dataset(dataset, length, strategy, ours)  # type: ignore[arg-type]
    return packed, trl.pack_dataset(dataset, length, strategy, theirs)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("length", [2, 7, 16, 64])
def test_as_trl_when_it_is_handed_everything(strategy: str, length: int) -> None:
    dataset = Dataset.from_dict(random_examples(length))
    ours, theirs = both(dataset, length, strategy, None, {"batch_size": len(dataset)})
    assert len(ours) > 20
    assert ours.features == theirs.features
    assert ours[:] == theirs[:]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("batch_size", [1, 9, 100, 1000, -1])
def test_as_trl_window_by_window(strategy: str, batch_size: int) -> None:
    # TRL fails on a window without any token, so there is none in these.
    examples = {k: [[*v, 1] for v in column] for k, column in random_examples(batch_size + 5).items()}
    dataset = Dataset.from_dict(examples)
    ours, theirs = both(dataset, 16, strategy, {"batch_size": batch_size}, {"batch_size": batch_size})
    assert len(ours) > 20
    assert ours[:] == theirs[:]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_as_trl_on_streams(strategy: str) -> None:
    stream = Dataset.from_dict(random_examples(1, 2500, 12)).to_iterable_dataset(num_shards=1)
    ours, theirs = both(stream, 16, strategy)
    rows = list(ours)
    assert len(rows) > 100
    assert rows == list(theirs)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "dtype", [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.float32(), pa.bool_(), pa.string()]
)
def test_as_trl_for_other_types(strategy: str, wide: bool, dtype: pa.DataType) -> None:
    random = np.random.default_rng(7)
    rows = [random.integers(0, 100, n).tolist() for n in random.integers(0, 20, 80)]
    lists = pa.large_list if wide else pa.list_
    table = pa.table(
        {
            "input_ids": pa.array(rows, type=lists(pa.int32())),
            "other": pa.array(rows, type=lists(pa.int64())).cast(lists(dtype)),
        }
    )
    ours, theirs = both(Dataset(table), 16, strategy)
    assert len(ours) > 20
    assert ours.data.column("other").type == lists(dtype)
    assert ours[:] == theirs[:]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_as_trl_on_selected_rows_and_many_chunks(strategy: str) -> None:
    """Tables that are slices, made of chunks, or read through a selection of rows."""
    whole = Dataset.from_dict(random_examples(3))
    parts = datasets.concatenate_datasets([Dataset.from_dict(random_examples(i, 20)) for i in range(12)])
    assert len(parts.data.column("input_ids").chunks) == 12
    sliced = Dataset(whole.data.table.slice(37, 150))
    shuffled = whole.shuffle(seed=1)
    assert shuffled._indices is not None
    for dataset in (parts, sliced, shuffled, whole.select(range(50, 200)), parts.shuffle(seed=2)):
        ours, theirs = both(dataset, 16, strategy)  # all have fewer rows than TRL's window
        assert len(ours) > 20
        assert ours[:] == theirs[:]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("style", [None, "numpy", "torch", "arrow", "pandas"])
def test_format_is_kept_as_trl_keeps_it(strategy: str, style: str | None) -> None:
    dataset = Dataset.from_dict(random_examples(4)).with_format(style)
    narrow = dataset.with_format(style, columns=["input_ids"])
    for given in (dataset, narrow):
        ours, theirs = both(given, 16, strategy)
        assert ours.format == theirs.format
        assert type(ours[0]) is type(theirs[0])
        assert ours.with_format(None)[:] == theirs.with_format(None)[:]
    stream = dataset.to_iterable_dataset().with_format(style)
    ours, theirs = both(stream, 16, strategy)
    assert type(next(iter(ours))) is type(next(iter(theirs)))


# --- all rows together ---


def test_a_dataset_is_packed_as_a_whole() -> None:
    dataset = Dataset.from_dict({"input_ids": [[1] * 3] * 1500 + [[2]] * 1500})
    packed = pack_dataset(dataset, 4)
    assert len(packed) == 1500  # in windows of 1,000 the threes and the ones hardly meet
    assert packed["seq_lengths"][:] == [[3, 1]] * 1500
    trl = pytest.importorskip("trl")
    assert len(trl.pack_dataset(dataset, 4)) > 1500


def test_num_proc_does_not_change_the_rows() -> None:
    dataset = Dataset.from_dict(random_examples(6))
    assert pack_dataset(dataset, 16, map_kwargs={"num_proc": 2})[:] == pack_dataset(dataset, 16)[:]


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset.from_dict(random_examples(8))
    for strategy in STRATEGIES:
        for options in (None, {"batch_size": 150}):
            whole = pack_dataset(dataset, 16, strategy, options)[:]
            with monkeypatch.context() as patch:
                patch.setattr(hub, "_BLOCK_TOKENS", 50)
                assert pack_dataset(dataset, 16, strategy, options)[:] == whole


def test_on_disk_it_is_cached_by_what_it_depends_on(tmp_path: Path) -> None:
    Dataset.from_dict(random_examples(9)).save_to_disk(tmp_path / "data")
    dataset = datasets.load_from_disk(tmp_path / "data")
    first = pack_dataset(dataset, 16)
    assert first.cache_files, "a dataset on disk is packed to disk"
    assert pack_dataset(dataset, 16).cache_files == first.cache_files
    others = [pack_dataset(dataset, 17), pack_dataset(dataset, 16, "bfd_split")]
    others += [pack_dataset(dataset, 16, map_kwargs={"batch_size": size}) for size in (10, 20)]
    others.append(pack_dataset(dataset.select_columns(["input_ids"]), 16))
    files = [first.cache_files[0]["filename"], *(other.cache_files[0]["filename"] for other in others)]
    assert len(set(files)) == 6
    again = pack_dataset(dataset, 16, map_kwargs={"cache_file_name": str(tmp_path / "here.arrow")})
    assert (tmp_path / "here.arrow").exists()
    assert again[:] == first[:]
    assert not pack_dataset(dataset, 16, map_kwargs={"keep_in_memory": True}).cache_files


def test_what_the_dataset_says_of_itself_is_kept() -> None:
    features = datasets.Features(
        {
            "input_ids": datasets.Sequence(datasets.Value("int64")),
            "tags": datasets.Sequence(datasets.ClassLabel(2)),
        }
    )
    info = datasets.DatasetInfo(description="four notes", features=features)
    table = {"input_ids": [[1, 2], [3]], "tags": [[0, 1], [1]]}
    packed = pack_dataset(Dataset.from_dict(table, features=features, info=info, split="train"), 8)
    assert (packed.info.description, str(packed.split)) == ("four notes", "train")
    assert {name: packed.features[name] for name in features} == dict(features)
    assert packed[:]["tags"] == [[0, 1, 1]]


@pytest.mark.parametrize("map_kwargs", [None, {"batch_size": 3}])
def test_remove_columns_comes_before_packing(map_kwargs: dict[str, Any] | None) -> None:
    dataset = Dataset.from_dict({**EXAMPLES, "text": ["a", "b", "c", "d"]})
    for kind in (dataset, dataset.to_iterable_dataset()):
        packed = pack_dataset(kind, 4, map_kwargs={**(map_kwargs or {}), "remove_columns": ["text"]})
        assert set(next(iter(packed))) == {"input_ids", "attention_mask", "seq_lengths"}


# --- dictionaries ---


def test_splits_are_packed_by_themselves(tmp_path: Path) -> None:
    splits = {name: Dataset.from_dict(random_examples(i)) for i, name in enumerate(("train", "test"))}
    packed = pack_dataset(DatasetDict(splits), 16)
    assert type(packed) is DatasetDict
    streamed = pack_dataset(IterableDatasetDict({k: v.to_iterable_dataset() for k, v in splits.items()}), 16)
    assert type(streamed) is IterableDatasetDict
    for name, split in splits.items():
        alone = pack_dataset(split, 16)
        assert packed[name][:] == alone[:]
        assert list(streamed[name]) == list(alone)  # fewer rows than a window
    files = {"train": str(tmp_path / "a.arrow"), "test": None}
    pack_dataset(DatasetDict(splits), 16, map_kwargs={"cache_file_names": files})
    assert (tmp_path / "a.arrow").exists()


# --- refusals ---


@pytest.mark.parametrize("map_kwargs", [None, {"batch_size": 2}])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_columns_that_cannot_be_packed(strategy: Strategy, map_kwargs: dict[str, Any] | None) -> None:
    flat = Dataset.from_dict({"input_ids": [[1], [2]], "text": ["a", "b"]})
    uneven = Dataset.from_dict({"input_ids": [[1], [2, 3]], "labels": [[1], [2]]})
    with pytest.raises(TypeError, match="column 'text': holds string"):
        pack_dataset(flat, 4, strategy, map_kwargs)
    with pytest.raises(ValueError, match="'input_ids' and 'labels': row 1 has lists of 2 and 1 elements"):
        pack_dataset(uneven, 4, strategy, map_kwargs)
    with pytest.raises(ColumnError, match="'text'"):
        list(pack_dataset(flat.to_iterable_dataset(), 4, strategy))
    with pytest.raises(ColumnError, match="no column"):
        pack_dataset(Dataset.from_dict({}), 4, strategy, map_kwargs)


def test_options_that_cannot_be() -> None:
    dataset = Dataset.from_dict(EXAMPLES)
    with pytest.raises(ConfigError, match="strategy: 'ffd'"):
        pack_dataset(dataset, 4, "ffd")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_length: 1 "):
        pack_dataset(dataset.to_iterable_dataset(), 1)
    with pytest.raises(ConfigError):
        pack_dataset(dataset, 4, map_kwargs={"drop_last_batch": True})
    for kind in (dataset, dataset.to_iterable_dataset()):
        with pytest.raises(ConfigError, match="with_indices"):
            pack_dataset(kind, 4, map_kwargs={"with_indices": True, "batch_size": 2})
    with pytest.raises(InputError):
        pack_dataset([[1, 2]], 4)
