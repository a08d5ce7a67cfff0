"""`packtrain loader`: what a trainer would get, for people and as JSON."""

import json
from collections.abc import Callable
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


def test_what_it_prints_is_what_the_loader_gives(packed: Path, packtrain: Command) -> None:
    done = packtrain("loader", packed, "--rows-per-step", 4, "--world-size", 2, "--rank", 1, "--steps", 3, "--json")
    assert (done.code, done.err) == (0, "")
    view = json.loads(done.out)
    loader = PackedLoader(packed, rows_per_step=4, rank=1, world_size=2)
    assert (view["steps"], view["rank"], view["world_size"], view["place"]) == (len(loader), 1, 2, "given")
    assert len(view["seen"]) == 3
    for seen, batch in zip(view["seen"], loader, strict=False):
        assert seen["tokens"] == batch["input_ids"].numel()
        assert seen["trained"] == int((batch["labels"] != -100).sum())
        assert seen["documents"] == len(batch["cu_seq_lens_q"]) - 1
        assert seen["longest"] == batch["max_length_q"]
        assert seen["fill"] == pytest.approx(seen["tokens"] / (2 * 256))
        assert seen["balance"] >= 1
    assert view["batch"]["input_ids"] == f"int64 [1, {view['seen'][0]['tokens']}]"
    assert view["first"] > 0
    assert view["tokens_per_second"] > 0
