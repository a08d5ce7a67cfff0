"""Sources that grow, or are cut by `max_rows`: which blocks are encoded, and what is counted."""

import shutil
from pathlib import Path
from typing import Any

import packtrain
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.inputs import scan
from packtrain.schemas.dataset.manifest import Manifest

from tests import kit


class Heard(kit.Heard):
    """Remembers how many bytes there were to encode."""

    encoded = 0

    def begin(self, stage: str, total: int, unit: str) -> None:
        if stage == "encode":
            self.encoded = total


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK_BYTES", 4000)


def run(path: Path, out: str = "out", **keys: Any) -> tuple[Manifest, int]:
    """The manifest, and how many bytes had to be encoded."""
    heard = Heard()
    source = kit.source("pairs", path=path.name, **keys)
    config = kit.configure(path.parent, source, out=str(path.parent / out), tokenizer={"engine": "tokenizers"})
    return packtrain.run(config, base=path.parent, observer=heard).manifest, heard.encoded


@pytest.mark.slow
@pytest.mark.parametrize("name", ["csv", "jsonl.gz", "parquet", "arrow"])
def test_appended_rows_encode_only_their_blocks(name: str, tmp_path: Path) -> None:
    path = kit.write(tmp_path / f"in.{name}", kit.corpus("pairs", 380))
    _, first = run(path)
    kit.write(path, kit.corpus("pairs", 400))
    grown, more = run(path, "grown")
    assert 0 < more < first / 4
    shutil.rmtree(tmp_path / "cache")
    assert run(path, "alone")[0].hash == grown.hash


@pytest.mark.parametrize(
    "name", ["jsonl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("parquet", "csv"))]
)
def test_the_first_rows_are_taken_and_the_others_counted(name: str, tmp_path: Path) -> None:
    path = kit.write(tmp_path / f"in.{name}", kit.corpus("pairs", 300))
    whole, first = run(path)
    some, more = run(path, "some", max_rows=133)
    entry = some.ledger.sources["pairs"]
    assert (entry.rows_read, entry.rows_used, entry.rows_filtered) == (300, 133, {"not_taken": 167})
    table = pq.read_table(tmp_path / "some/documents.parquet")
    assert table.column("id").to_pylist() == [f"pairs/in:{number}" for number in range(1, 134)]
    assert more < first / 5, "only the block in which the limit falls"
    beyond, _ = run(path, "beyond", max_rows=1000)
    assert [s.hash for s in beyond.splits["train"].shards] == [s.hash for s in whole.splits["train"].shards]
