"""`packtrain loader`: what a trainer would get."""

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from packtrain.training import PackedLoader

from tests import kit

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a file whose name looks like markup, as data may."""
    folder = tmp_path_factory.mktemp("command")
    path = kit.write(folder / "ro[bold]ws.jsonl", kit.corpus("texts", 200))
    return kit.packed(kit.configure(folder, {"name": "text", "format": "text", "path": path.name})).folder


def cells(out: str, first: str) -> list[list[str]]:
    """The rows of the table whose head begins with a word."""
    lines = out.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.split("┃")[0].strip() == first)
    rows = (line.split("│") for line in lines[begin + 2 :] if "│" in line or line.strip() == "")
    return [[cell.strip() for cell in row] for row in takewhile(lambda row: len(row) > 1, rows)]


def test_what_it_prints_is_what_the_loader_gives(packed: Path, packtrain: Command) -> None:
    done = packtrain("loader", packed, "--rows-per-step", 4, "--rank", "1/2", "--steps", 3)
    assert (done.code, done.err) == (0, "")
    loader = PackedLoader(packed, rows_per_step=4, rank=1, world_size=2)
    assert f"{len(loader):,} steps of 4 rows" in done.out
    assert "rank 1 of 2 (given)" in done.out
    seen = cells(done.out, "step")
    assert len(seen) == 3
    for step, batch in zip(seen, loader, strict=False):
        tokens = batch["input_ids"].numel()
        assert step[2:4] == [f"{len(batch['cu_seq_lens_q']) - 1:,}", f"{tokens:,}"]
        assert step[4] == f"{int((batch['labels'] != -100).sum()) / tokens:.1%}"
        assert step[5] == f"{tokens / (2 * 256):.2%}"
        assert step[6] == f"{batch['max_length_q']:,}"
        assert float(step[7]) >= 1


def test_preference_pairs_are_counted_as_pairs(tmp_path: Path, packtrain: Command) -> None:
    path = kit.write(tmp_path / "pairs.jsonl", kit.corpus("choices", 40))
    packed_pairs = kit.packed(kit.configure(tmp_path, {"name": "p", "format": "preference", "path": path.name})).folder
    done = packtrain("loader", packed_pairs, "--rows-per-step", 2, "--steps", 2)
    assert (done.code, done.err) == (0, "")
    assert "longest side" in done.out
    seen = cells(done.out, "step")
    assert len(seen) == 2
    for step, batch in zip(seen, PackedLoader(packed_pairs, rows_per_step=2), strict=False):
        pieces = len(batch["cu_seq_lens_q"]) - 1
        assert pieces > 2
        assert step[2] == f"{pieces // 2:,}"
