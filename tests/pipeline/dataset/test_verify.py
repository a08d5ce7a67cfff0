"""Verify finds unexpected files, rows that break an invariant behind a right hash, and unfinished folders."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from blake3 import blake3
from packtrain.pipeline.dataset.verify import verify
from packtrain.schemas.dataset.manifest import Manifest

from tests import kit

Row = dict[str, list[Any]]
Change = Callable[[Row], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset of packed rows with loss weights and padding, and one of preference pairs that are not packed."""
    folder = tmp_path_factory.mktemp("verify")
    more = {"pack": {"parallel": {"cp": 2}}, "loss": {"column": "always"}}
    rows = kit.configure(folder, "texts", "chats", out=str(folder / "rows"), **more)
    pairs = kit.configure(folder, "choices", out=str(folder / "pairs"), pack={"strategy": "none"})
    return {"rows": kit.packed(rows).folder, "pairs": kit.packed(pairs).folder}


def changed(folder: Path, change: Change) -> list[str]:
    """What verify says after a change of one row of the first shard, whose hash is then right again."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    shard = manifest["splits"]["train"]["shards"][0]
    path = folder / shard["name"]
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        schema, rows = reader.schema, reader.read_all().to_pylist()
    number = next((place for place, row in enumerate(rows) if padded(row)), 0)
    change(rows[number])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    data = path.read_bytes()
    shard |= {"bytes": len(data), "hash": blake3(data).hexdigest()}
    (folder / "manifest.json").write_bytes(Manifest.from_json(manifest).to_bytes())
    where = f"{shard['name']}, row {number}: "
    return [str(finding).removeprefix(where) for finding in verify(folder, deep=True).findings]


def padded(row: Row) -> bool:
    """Whether some piece of a row is padded, and there are several."""
    return len(row["doc_ids"]) > 2 and row["seq_lengths"] != row["seq_lengths_unpadded"]


def put(name: str, place: int, value: Any) -> Change:
    return lambda row: row[name].__setitem__(place, value)


def label(value: Any) -> Change:
    """Change the first trained label."""
    return lambda row: row["labels"].__setitem__(next(i for i, one in enumerate(row["labels"]) if one >= 0), value)


def weigh(trained: bool, value: float) -> Change:
    """Change the loss weight of the first token that is trained, or is not."""
    return lambda row: row["loss_weights"].__setitem__(
        next(i for i, one in enumerate(row["labels"]) if (one >= 0) == trained), value
    )


def pad(name: str, value: int) -> Change:
    """Change a column at the padding of the first piece that has some."""

    def change(row: Row) -> None:
        begin = 0
        for length, own in zip(row["seq_lengths"], row["seq_lengths_unpadded"], strict=True):
            if own < length:
                row[name][begin + own] = row["input_ids"][begin + own] if name == "labels" else value
                return
            begin += length
        raise AssertionError("no piece is padded")

    return change


def longer(row: Row) -> None:
    """Make the row longer than it may be, in every column."""
    row["seq_lengths"][-1] += 300
    for name in ("input_ids", "labels", "position_ids", "loss_weights"):
        row[name] += [0] * 300


ROWS: list[tuple[Change, str]] = [
    (lambda row: row["labels"].pop(), "labels has another length than input_ids"),
    (lambda row: row["position_ids"].append(0), "position_ids has another length than input_ids"),
    (lambda row: row["loss_weights"].pop(), "loss_weights has another length than input_ids"),
    (lambda row: row["doc_ids"].append(0), "doc_ids has another length than seq_lengths"),
    (lambda row: row["doc_starts"].pop(), "doc_starts has another length than seq_lengths"),
    (lambda row: row["seq_lengths_unpadded"].pop(), "seq_lengths_unpadded has another length than seq_lengths"),
    (longer, "is longer than max_length (256)"),
    (put("seq_lengths", 0, 0), "a piece has no tokens"),
    (put("seq_lengths", 0, 1), "seq_lengths does not add up to the row"),
    (put("seq_lengths_unpadded", 0, 300), "seq_lengths_unpadded is not between 1 and the piece's seq_lengths"),
    (put("position_ids", 1, 7), "position_ids do not count 0, 1, 2, … in every document"),
    (label(399), "a label is neither its own input id nor -100"),
    (lambda row: row["labels"].__setitem__(0, row["input_ids"][0]), "the first label of a piece is not -100"),
    (weigh(True, float("nan")), "a loss weight is negative or not finite"),
    (weigh(False, -1.0), "a loss weight is negative or not finite"),
    (weigh(True, 0.0), "a trained token has no loss weight"),
    (weigh(False, 1.0), "a token without a label has a loss weight"),
    (put("seq_lengths_unpadded", 0, 1), "a piece is padded to another length than the configuration asks for"),
    (pad("labels", 0), "padding has a label"),
    (pad("input_ids", 77), "padding is not the token"),
]
PAIRS: list[tuple[Change, str]] = [
    (lambda row: row["chosen_ids"].clear(), "chosen_ids is empty"),
    (lambda row: row["rejected_ids"].clear(), "rejected_ids is empty"),
    (lambda row: row["chosen_ids"].extend([5] * 256), "prompt_ids and chosen_ids are longer than max_length (256)"),
    (lambda row: row["rejected_ids"].extend([5] * 256), "prompt_ids and rejected_ids are longer than max_length (256)"),
    (lambda row: row["doc_ids"].append(1), "does not have one doc id"),
    (lambda row: row.__setitem__("chosen_ids", row["rejected_ids"]), "chosen_ids and rejected_ids are the same"),
]


@pytest.mark.parametrize(
    ("kind", "change", "what"), [*(("rows", *one) for one in ROWS), *(("pairs", *one) for one in PAIRS)]
)
def test_a_row_that_breaks_an_invariant_behind_a_right_hash(
    made: dict[str, Path], tmp_path: Path, kind: str, change: Change, what: str
) -> None:
    shutil.copytree(made[kind], tmp_path / "out")
    assert any(said.startswith(what) for said in changed(tmp_path / "out", change))


@pytest.mark.parametrize("kind", ["rows", "pairs"])
def test_rewritten_rows_are_sound(made: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """Without a change, the test above would find nothing."""
    shutil.copytree(made[kind], tmp_path / "out")
    assert changed(tmp_path / "out", lambda row: None) == []
