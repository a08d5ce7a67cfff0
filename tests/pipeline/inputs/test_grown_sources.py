"""Sources that grow, are cut by `max_rows`, or change meanwhile: which blocks are encoded, and what is counted."""

import csv
import gzip
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packtrain
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.inputs import scan as sources_module
from packtrain.pipeline.observer import Silent
from packtrain.schemas.manifest import Manifest

Config = dict[str, Any]


WORDS = ("mules", "left", "the", "valley", "before", "sun", "was", "up", "nobody", "told", "them", "how", "far")


class Heard(Silent):
    """Remembers how much there was to do."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}

    def begin(self, stage: str, total: int, unit: str) -> None:
        self.totals[stage] = total


@pytest.fixture
def base(
    tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> Config:
    monkeypatch.setattr(sources_module, "BLOCK_BYTES", 4000)
    return {
        "out": str(tmp_path / "out"),
        "cache": str(new_cache()),
        "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},  # the fast ones are checked on all data
        "truncate": {"max_length": 128},
        "run": {"workers": 1, "report": False},
    }


def run(config: Config, path: Path, out: str = "out", **keys: Any) -> tuple[Manifest, int]:
    """The manifest, and how many bytes had to be encoded."""
    heard = Heard()
    source = {"name": "one", "format": "prompt_completion", "path": str(path), **keys}
    place = {"out": str(Path(config["out"]).with_name(out)), "sources": [source]}
    return packtrain.run({**config, **place}, observer=heard), heard.totals.get("encode", 0)


def words(number: int) -> str:
    chance = random.Random(number)
    return " ".join(chance.choice(WORDS) for _ in range(chance.randrange(1, 40)))


def write(folder: Path, name: str, count: int) -> Path:
    """So many pairs, the first ones always the same."""
    rows = [{"prompt": f"{number}: {words(number)}\n", "completion": words(number + 1)} for number in range(count)]
    lines, table = "".join(json.dumps(row) + "\n" for row in rows).encode(), pa.Table.from_pylist(rows)
    path = folder / f"in.{name}"
    if name == "csv":
        sink = io.StringIO()
        writer = csv.DictWriter(sink, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(sink.getvalue())
    elif name == "parquet":
        pq.write_table(table, path, row_group_size=20)
    elif name == "arrow":
        with pa.ipc.new_file(str(path), table.schema) as arrow:
            arrow.write_table(table, max_chunksize=90)
    else:
        path.write_bytes(gzip.compress(lines) if name.endswith("gz") else lines)
    return path


@pytest.mark.parametrize(
    "name", ["csv", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jsonl.gz", "parquet", "arrow"))]
)
def test_appended_rows_encode_only_their_blocks(name: str, base: Config, tmp_path: Path) -> None:
    path = write(tmp_path, name, 380)
    _, first = run(base, path)
    write(tmp_path, name, 400)
    grown, more = run(base, path, "grown")
    assert 0 < more < first / 4
    shutil.rmtree(base["cache"])
    assert run(base, path, "alone")[0].hash == grown.hash


@pytest.mark.parametrize("name", ["jsonl", "parquet", "csv"])
def test_the_first_rows_are_taken_and_the_others_counted(name: str, base: Config, tmp_path: Path) -> None:
    path = write(tmp_path, name, 300)
    whole, first = run(base, path)
    some, more = run(base, path, "some", max_rows=133)
    entry = some.ledger.sources["one"]
    assert (entry.rows_read, entry.rows_used, entry.rows_filtered) == (300, 133, {"not_taken": 167})
    table = pq.read_table(tmp_path / "some/documents.parquet")
    assert table.column("id").to_pylist() == [f"one/in:{number}" for number in range(1, 134)]
    assert more < first / 5, "only the block in which the limit falls"
    beyond, _ = run(base, path, "beyond", max_rows=1000)
    assert [s.hash for s in beyond.splits["train"].shards] == [s.hash for s in whole.splits["train"].shards]
