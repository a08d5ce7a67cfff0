"""An export, read back by those for whom it is made: the same rows, in the same order."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.pipeline.export.export import write_export
from tokenizers import Tokenizer

from .conftest import SHAPES
from .foreign_readers import (
    ForeignRow,
    datasets_parquet,
    llama_factory,
    mds,
    megatron_bridge,
    megatron_core,
    ms_swift,
    olmo_bounds,
    olmo_rules,
)

pytestmark = pytest.mark.xdist_group("exports")
SPLITS = ("train", "holdout")
Made = Callable[[str], Path]
Read = Callable[..., list[dict[str, Any]]]


def exported(dataset: Path, out: Path, to: str, **options: Any) -> dict[str, Any]:
    """An export of all rows and tokens."""
    made, whole = write_export(dataset, out, to, **options), open_dataset(dataset).manifest
    assert made["dataset"] == whole.hash
    for name, split in whole.splits.items():
        assert made["splits"][name] == {"rows": split.rows, "tokens": split.tokens, "trained": split.trained}
    return made


def plain(rows: list[dict[str, Any]]) -> Iterator[ForeignRow]:
    """The dataset's own rows as a foreign reader gives them."""
    for row in rows:
        yield row["input_ids"], [label != -100 for label in row["labels"]], row["seq_lengths"]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_megatron(made: Made, read_rows: Read, tmp_path: Path, shape: str) -> None:
    exported(made(shape), tmp_path / "out", "megatron")
    for split in SPLITS:
        assert list(megatron_core(tmp_path / "out", split)) == list(plain(read_rows(made(shape), split)))


def apart(ids: list[int], trained: list[bool], lengths: list[int]) -> Iterator[tuple[list[int], list[bool]]]:
    """The documents of a row."""
    begin = 0
    for length in lengths:
        yield ids[begin : begin + length], trained[begin : begin + length]
        begin += length


READERS: dict[str, Callable[[Path, str, Path], Iterator[Any]]] = {
    "mds": lambda out, split, cache: mds(out, split),
    "trl": datasets_parquet,
    "megatron-bridge": lambda out, split, cache: megatron_bridge(out, split),
    "llama-factory": lambda out, split, cache: llama_factory(out, split),
    "ms-swift": lambda out, split, cache: ms_swift(out, split),
    "olmo-core": lambda out, split, cache: olmo_bounds(out, split),
}


@pytest.mark.parametrize(
    "shape", [pytest.param(shape, marks=[pytest.mark.slow] * (place % 4 > 0)) for place, shape in enumerate(SHAPES)]
)
@pytest.mark.parametrize("to", READERS)
def test_the_rows_come_back(made: Made, read_rows: Read, tmp_path: Path, to: str, shape: str) -> None:
    if (to, shape) == ("megatron-bridge", "parallel"):
        return  # with padding of its own: below
    exported(made(shape), tmp_path / "out", to)
    for split in SPLITS:
        rows = read_rows(made(shape), split)
        expected: list[Any] = rows if to in ("mds", "trl") else list(plain(rows))
        if to == "olmo-core":  # which takes documents, and makes rows of its own
            expected = [document for row in expected for document in apart(*row)]
        assert list(READERS[to](tmp_path / "out", split, tmp_path / "cache")) == expected


def test_collate_takes_the_rows_of_mds(made: Made, read_rows: Read, tmp_path: Path) -> None:
    training = pytest.importorskip("packtrain.training.batch")
    exported(made("bfd"), tmp_path / "out", "mds")
    rows = [{name: np.array(value) for name, value in row.items()} for row in mds(tmp_path / "out", "train")]
    actual, expected = training.collate(rows[:3]), training.collate(read_rows(made("bfd"))[:3])
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert (actual[name] == value).all() if hasattr(value, "all") else actual[name] == value


def test_megatron_bridge_under_context_parallelism(made: Made, read_rows: Read, tmp_path: Path) -> None:
    """Run-time lengths are multiples, rows are as long as planned, and what is added is not trained."""
    shape, multiple = "parallel", 4
    whole = open_dataset(made(shape)).manifest
    pad_id = whole.plan["tokenizer"]["pad_id"]
    exported(made(shape), tmp_path / "out", "megatron-bridge")
    padding = 0
    for (ids, trained, lengths), row in zip(
        megatron_bridge(tmp_path / "out", "train"), read_rows(made(shape)), strict=True
    ):
        assert [length % multiple for length in lengths] == [1] * len(lengths)
        assert sum(lengths) - len(lengths) <= whole.max_length
        begin, at = 0, 0
        for length, own in zip(lengths, row["seq_lengths"], strict=True):
            assert ids[begin : begin + own] == row["input_ids"][at : at + own]
            assert ids[begin + own : begin + length] == [pad_id] * (length - own)
            flags = [label != -100 for label in row["labels"][at : at + own]]
            assert trained[begin : begin + length] == flags + [False] * (length - own)
            begin, at, padding = begin + length, at + own, padding + length - own
    assert padding > 0


@pytest.mark.parametrize("shape", ["bfd", "wrapped", "small shards"])
def test_olmo_core(made: Made, read_rows: Read, tiny_tokenizer: Path, tmp_path: Path, shape: str) -> None:
    whole = open_dataset(made(shape)).manifest
    eos = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json")).token_to_id("<|im_end|>")
    assert eos is not None
    exported(made(shape), tmp_path / "out", "olmo-core", eos_id=eos)
    for split in SPLITS:
        found = olmo_rules(tmp_path / "out", split, eos, whole.max_length)
        for (ids, trained, lengths), (own, flags, pieces) in zip(
            found, plain(read_rows(made(shape), split)), strict=True
        ):
            rest = whole.max_length - len(own)
            assert ids[: len(own)] == own
            assert eos not in ids[len(own) :]
            assert trained == flags + [False] * rest
            ends = {*np.cumsum(pieces).tolist(), whole.max_length} - ({len(own)} if rest and own[-1] != eos else set())
            assert np.cumsum(lengths).tolist() == sorted(ends)
