"""Sizes of rows are known without opening a shard, and equal those in the shards."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

torch = pytest.importorskip("torch")

from packtrain.pipeline.dataset.verify import verify  # noqa: E402
from packtrain.schemas.errors import IntegrityError  # noqa: E402
from packtrain.schemas.flops import SEVEN_BILLION  # noqa: E402
from packtrain.schemas.rows import ROW_SIZES  # noqa: E402
from packtrain.training import Balance, PackedLoader  # noqa: E402
from packtrain.training.shards.dataset_rows import PackedRows  # noqa: E402


def test_they_are_those_of_the_shards(folder: Path) -> None:
    rows = PackedRows(folder)
    found = [rows.row(index).seq_lengths for index in range(len(rows))]
    assert len(rows.shards) > 1
    assert rows.sizes.tokens(np.arange(len(rows))).tolist() == [int(one.sum()) for one in found]
    squares = np.array([int((one.astype(np.int64) ** 2).sum()) for one in found])
    expected = SEVEN_BILLION.weigh(rows.sizes.tokens(np.arange(len(rows))), squares)
    assert SEVEN_BILLION.weigh(*rows.sizes.of(np.arange(len(rows)))).tolist() == expected.tolist()


def test_steps_are_ordered_balanced_and_counted_without_a_shard(folder: Path) -> None:
    loader = PackedLoader(folder, rows_per_step=6, rank=1, world_size=3, balance=Balance(8, 4))
    for number in range(len(loader)):
        loader.steps.at(number * 6)
    assert not loader.corpus.parts[0]._open
    next(iter(PackedLoader(folder, rows_per_step=6, rank=1, world_size=3, num_workers=0)))


def test_a_rank_opens_only_the_shards_of_its_own_rows(folder: Path) -> None:
    loader = PackedLoader(
        folder, rows_per_step=2, rank=0, world_size=2, num_workers=0, order="sequential", balance=None
    )
    next(iter(loader))
    assert list(loader.corpus.parts[0]._open) == [0]


def test_aligned_pieces_weigh_what_they_are_padded_to(make_packed: Any, tmp_path: Path) -> None:
    folder = make_packed("aligned", 40, align=8)
    rows = PackedRows(folder)
    for index in range(len(rows)):
        row = rows.row(index)
        assert (row.seq_lengths % 8 == 0).all()
        assert rows.sizes.tokens(np.array([index])).tolist() == [len(row.input_ids)]
    assert verify(folder, deep=True).sound


def damage(folder: Path, tokens: list[int], squares: list[int]) -> None:
    columns = [pa.array(tokens, pa.int32()), pa.array(squares, pa.int64())]
    with pa.ipc.new_file(str(folder / "rows.arrow"), ROW_SIZES) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=ROW_SIZES))


def test_verify_holds_them_against_the_shards(folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    sizes = PackedRows(copy).sizes
    tokens, squares = sizes._tokens.tolist(), sizes._squares.tolist()
    damage(copy, [*tokens[:-1], tokens[-1] + 1], squares)
    findings = [str(finding) for finding in verify(copy).findings]
    assert any("rows.arrow has other sizes for this row" in finding for finding in findings)
    deep = [str(finding) for finding in verify(copy, deep=True).findings]
    assert any("rows.arrow" in finding and "does not match its hash" in finding for finding in deep)
    damage(copy, tokens, [*squares[:3], squares[3] + 1, *squares[4:]])
    assert next(str(finding) for finding in verify(copy).findings).endswith(
        "row 3: rows.arrow has other sizes for this row"
    )


def test_damage_is_named(folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    size = (copy / "rows.arrow").stat().st_size
    (copy / "rows.arrow").write_bytes(b"x" * size)
    with pytest.raises(IntegrityError, match=r"rows\.arrow cannot be read"):
        _ = PackedRows(copy).sizes
    (copy / "rows.arrow").unlink()
    with pytest.raises(IntegrityError, match=r"rows\.arrow cannot be read"):
        PackedLoader(copy, rows_per_step=1)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"] = [file for file in manifest["files"] if file["name"] != "rows.arrow"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(IntegrityError, match=r"does not list rows\.arrow"):
        PackedLoader(copy, rows_per_step=1)
