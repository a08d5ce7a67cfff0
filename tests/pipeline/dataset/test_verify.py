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
    """Datasets of packed rows with loss weights and padding, of preference pairs that are not packed, of packed ones,
    and of those that share prompts.
    """
    folder = tmp_path_factory.mktemp("verify")
    more = {"pack": {"parallel": {"cp": 2}}, "loss": {"column": "always"}}
    rows = kit.configure(folder, "texts", "chats", out=str(folder / "rows"), **more)
    unpacked = kit.configure(folder, "choices", out=str(folder / "unpacked"), pack={"strategy": "none"})
    pairs = kit.configure(folder, "choices", out=str(folder / "pairs"), pack={"row_length": 512})
    shared = kit.configure(folder, "choices", out=str(folder / "shared"), pack={"share": "row", "row_length": 512})
    return {
        "rows": kit.packed(rows).folder,
        "unpacked": kit.packed(unpacked).folder,
        "pairs": kit.packed(pairs).folder,
        "shared": kit.packed(shared).folder,
    }


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
    return len(row["doc_ids"]) > 2 and row.get("seq_lengths") != row.get("seq_lengths_unpadded", row.get("seq_lengths"))


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
UNPACKED: list[tuple[Change, str]] = [
    (lambda row: row["chosen_ids"].clear(), "chosen_ids is empty"),
    (lambda row: row["rejected_ids"].clear(), "rejected_ids is empty"),
    (lambda row: row["chosen_ids"].extend([5] * 256), "prompt_ids and chosen_ids are longer than max_length (256)"),
    (lambda row: row["rejected_ids"].extend([5] * 256), "prompt_ids and rejected_ids are longer than max_length (256)"),
    (lambda row: row["doc_ids"].append(1), "does not have one doc id"),
    (lambda row: row.__setitem__("chosen_ids", row["rejected_ids"]), "chosen_ids and rejected_ids are the same"),
]


def of_sides(change: Callable[[Row, int, slice, slice], object]) -> Change:
    """Change the first pair with a prompt of several tokens.

    Args:
        change: takes the row, the number of the pair's first piece, and where the tokens of both sides stand.
    """

    def change_row(row: Row) -> None:
        prefix = "branch_" if "branch_parents" in row else "pair_"
        lengths = row[f"{prefix}lengths"]
        begins = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
        labels = row[f"{prefix}labels"]
        for number in range(0, len(lengths), 2):
            chosen, rejected = slice(*begins[number : number + 2]), slice(*begins[number + 1 : number + 3])
            if labels[chosen][:3] == [-100] * 3:
                change(row, number, chosen, rejected)
                return
        raise AssertionError("no pair has a prompt")

    return change_row


def untrain(row: Row, number: int, chosen: slice, rejected: slice) -> None:
    """Take all labels of the rejected side."""
    row["pair_labels"][rejected] = [-100] * (rejected.stop - rejected.start)


def make_equal(row: Row, number: int, chosen: slice, rejected: slice) -> None:
    """Make both sides the shorter one of the two."""
    prefix = "branch_" if "branch_parents" in row else "pair_"
    shared = row[f"{prefix}position_ids"][rejected.start]
    sizes = chosen.stop - chosen.start, shared + rejected.stop - rejected.start
    for name in (f"{prefix}input_ids", f"{prefix}labels", f"{prefix}position_ids"):
        values = row[name]
        sides = values[chosen], values[chosen][:shared] + values[rejected]
        side = sides[sizes.index(min(sizes))]
        row[name] = values[: chosen.start] + side + side[shared:] + values[rejected.stop :]
    row[f"{prefix}lengths"][number : number + 2] = min(sizes), min(sizes) - shared


PAIRS: list[tuple[Change, str]] = [
    (lambda row: row["sides"].pop(), "sides has another length than seq_lengths"),
    (put("sides", 0, 1), "sides are not 0 and 1 in turn"),
    (lambda row: row["sides"].reverse(), "sides are not 0 and 1 in turn"),
    (put("doc_ids", 0, 10**6), "the two sides of a pair have different doc ids"),
    (of_sides(lambda row, number, chosen, rejected: row["pair_input_ids"].__setitem__(rejected.start, 7)),
     "the two sides of a pair begin with different prompts"),
    (of_sides(lambda row, number, chosen, rejected: row["pair_labels"].__setitem__(
        chosen.start + 1, row["pair_input_ids"][chosen.start + 1])),
     "the two sides of a pair begin with different prompts"),
    (of_sides(untrain), "a side of a pair has no label"),
    (of_sides(make_equal), "both sides of a pair are the same"),
]  # fmt: skip
SHARED: list[tuple[Change, str]] = [
    (of_sides(lambda row, number, chosen, rejected: row["branch_input_ids"].__setitem__(rejected.start, 7)),
     "the two sides of a pair begin with different prompts"),
    (of_sides(make_equal), "both sides of a pair are the same"),
    (put("branch_parents", 3, 2), "a side of a pair continues another pair"),
]  # fmt: skip
CHANGES = {"rows": ROWS, "unpacked": UNPACKED, "pairs": PAIRS, "shared": SHARED}


@pytest.mark.parametrize(
    ("kind", "change", "what"), [(kind, *change) for kind, changes in CHANGES.items() for change in changes]
)
def test_a_row_that_breaks_an_invariant_behind_a_right_hash(
    made: dict[str, Path], tmp_path: Path, kind: str, change: Change, what: str
) -> None:
    shutil.copytree(made[kind], tmp_path / "out")
    assert any(said.startswith(what) for said in changed(tmp_path / "out", change))


@pytest.mark.parametrize("kind", list(CHANGES))
def test_rewritten_rows_are_sound(made: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """Without a change, the test above would find nothing."""
    shutil.copytree(made[kind], tmp_path / "out")
    assert changed(tmp_path / "out", lambda row: None) == []


def test_a_pair_that_is_longer_than_the_limit(made: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(made["pairs"], tmp_path / "out")
    file = tmp_path / "out" / "manifest.json"
    manifest = Manifest.read(file.read_bytes(), "it")
    manifest.plan["config"]["truncate"]["max_length"] = 250
    file.write_bytes(manifest.to_bytes())
    problems = {finding.problem for finding in verify(tmp_path / "out").findings}
    assert "the two sides of a pair are longer than max_length (250)" in problems


def test_a_cache_of_datasets_is_named_and_no_repair_is_advised(
    made: dict[str, Path], tmp_path: Path, packtrain: Callable[..., Any]
) -> None:
    """What `map` computes of a dataset that was loaded from disk is written beside its shards."""
    import datasets

    folder = Path(shutil.copytree(made["rows"], tmp_path / "rows"))
    datasets.load_from_disk(str(folder)).map(lambda row: {"length": len(row["input_ids"])})
    (cache,) = folder.rglob("cache-*.arrow")
    (finding,) = verify(folder).findings
    assert finding.where == str(cache.relative_to(folder))
    assert finding.problem.startswith("is a cache of the package datasets (of map, filter or shuffle), and is not in")
    done = packtrain("verify", folder)
    assert (done.code, "--repair" in done.out) == (1, False)
    refused = packtrain("export", folder, "--to", "mds", "--out", tmp_path / "mds")
    assert (refused.code, "is damaged" in refused.err, "remove it" in refused.err) == (2, False, True)
    cache.unlink()
    assert verify(folder).sound
    shard = next((folder / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-5])
    assert "--repair" in packtrain("verify", folder).out, "damage can be repaired"
