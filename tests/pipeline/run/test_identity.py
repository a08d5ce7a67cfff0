"""The same question has the same answer to the byte, and is never worked out twice.

Bytes depend on inputs, configuration and tokenizer; not on workers, executors, places, times or what the cache holds.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import packtrain
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.execute import backends
from packtrain.pipeline.execute.local import LocalExecutor
from packtrain.pipeline.inputs import scan as sources_module
from packtrain.pipeline.pack.window_plan import WindowPlan, permute_rows
from packtrain.pipeline.pack.windows import mix64, window_seed
from packtrain.pipeline.run import driver as run_module
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.errors import OutputError
from packtrain.schemas.fingerprint import hash_bytes
from packtrain.schemas.manifest import Manifest
from packtrain.stages.pack.plan import plan_rows

Config = dict[str, Any]
ReadRows = Callable[..., list[dict[str, Any]]]

WORDS = ("mules", "left", "the", "valley", "before", "sun", "was", "up", "nobody", "told", "them", "how", "far")


def words(count: int, salt: int) -> str:
    return " ".join(WORDS[(salt * 7 + index * (salt % 5 + 1)) % len(WORDS)] for index in range(count))


def text_lines(first: int, count: int) -> list[str]:
    return [
        json.dumps({"text": f"{number}: {words(3 + number % 30, number)}"}) for number in range(first, first + count)
    ]


def problem_lines(first: int, count: int) -> list[str]:
    return [
        json.dumps(
            {
                "id": number,
                "question": words(4 + number % 9, number),
                "solutions": json.dumps([f"print({number}, {s})" for s in range(1 + number % 4)]),
            }
        )
        for number in range(first, first + count)
    ]


class Heard:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.totals: dict[str, int] = {}
        self.notes: list[str] = []

    @property
    def work(self) -> list[str]:
        """The stages that make something."""
        return [stage for stage in self.stages if stage in ("encode", "pack")]

    def begin(self, stage: str, total: int, unit: str) -> None:
        self.stages.append(stage)
        self.totals[stage] = total

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        pass

    def end(self) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of every file, so that there is something to do side by side and something to keep."""
    monkeypatch.setattr(sources_module, "BLOCK_BYTES", 4000)


@pytest.fixture
def tokenizer(make_tokenizer: Callable[..., Path]) -> Path:
    return make_tokenizer("tiny")


@pytest.fixture
def config(tmp_path: Path, tokenizer: Path, new_cache: Callable[[Path], Path]) -> Config:
    """Two sources of several blocks each, to be packed into several shards."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    (inputs / "texts.jsonl").write_text("\n".join(text_lines(0, 260)) + "\n")
    (inputs / "problems.jsonl").write_text("\n".join(problem_lines(0, 60)) + "\n")
    return {
        "out": str(tmp_path / "out"),
        "cache": str(new_cache(tokenizer)),
        "tokenizer": {"path": str(tokenizer)},
        "sources": [
            {"name": "texts", "format": "text", "path": str(inputs / "texts.jsonl")},
            {"name": "problems", "format": "apps", "path": str(inputs / "problems.jsonl")},
        ],
        "truncate": {"max_length": 256},
        "output": {"shard_bytes": 1 << 16},
        "run": {"workers": 1, "report": False},
    }


def run(config: Config, **changes: Any) -> tuple[Manifest, Heard]:
    heard = Heard()
    return packtrain.run({**config, **changes}, observer=heard), heard


NOTES = ("_run", "report.html", "report.json")
"""Files outside the dataset: they are for people and for the next run, and say where and when."""


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file of the dataset; notes on how it was made are in `_run` and in the report."""
    return {
        path.relative_to(folder).as_posix(): hash_bytes(path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in NOTES
    }


def parts(config: Config) -> dict[str, int]:
    """Encoded parts in the cache, and when each was written."""
    return {
        path.name: path.stat().st_mtime_ns for path in (Path(config["cache"]) / "encoded").rglob("*") if path.is_file()
    }


# --- the same bytes ---


def test_workers_do_not_matter(
    config: Config,
    tokenizer: Path,
    tmp_path: Path,
    new_cache: Callable[[Path], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools: list[int] = []

    class Counted(LocalExecutor):
        def __init__(self, workers: int, **options: Any) -> None:
            pools.append(workers)
            super().__init__(workers, **options)

    monkeypatch.setattr(backends, "LocalExecutor", Counted)
    made = {}
    for workers in (1, 2, 3):
        out = tmp_path / f"out-{workers}"
        settings = {"workers": workers, "report": False}
        manifest, heard = run(config, out=str(out), cache=str(new_cache(tokenizer)), run=settings)
        assert heard.work == ["encode", "pack"]
        made[workers] = (manifest.hash, contents(out))
    assert pools == [2, 3]
    assert made[1] == made[2] == made[3]
    names = made[1][1]
    assert len([name for name in names if name.startswith("shards/")]) >= 2
    assert {"manifest.json", "documents.parquet", "dataset_info.json", "state.json", "rejects.jsonl"} <= {*names}


def test_nothing_tells_where_it_was_made(config: Config, tmp_path: Path) -> None:
    run(config)
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file() and not {*NOTES} & {*path.parts}:
            assert str(tmp_path).encode() not in path.read_bytes(), path
    plan = (tmp_path / "out/_run/plan.json").read_text()
    assert str(tmp_path) not in plan
    assert "workers" not in plan


def test_inputs_may_lie_elsewhere(
    config: Config, tmp_path: Path, tokenizer: Path, new_cache: Callable[[Path], Path]
) -> None:
    """Other folders, another cache, another out: the same dataset. Only the files' own names are part of it."""
    first, _ = run(config)
    shutil.copytree(tmp_path / "inputs", tmp_path / "far/away")
    shutil.copytree(tokenizer, tmp_path / "far" / tokenizer.name)
    moved = json.loads(json.dumps(config).replace(str(tmp_path / "inputs"), str(tmp_path / "far/away")))
    moved["tokenizer"]["path"] = str(tmp_path / "far" / tokenizer.name)
    second, _ = run(moved, out=str(tmp_path / "second"), cache=str(new_cache(tokenizer)))
    assert second.hash == first.hash
    assert contents(tmp_path / "second") == contents(tmp_path / "out")
    # And the first folder takes the moved inputs for its own.
    again, heard = run(moved)
    assert again.hash == first.hash
    assert heard.work == []


def test_names_of_inputs_are_in_ids_and_in_nothing_else(config: Config, tmp_path: Path) -> None:
    """A renamed input gives the same shards from the same parts; its documents are called otherwise."""
    first, _ = run(config)
    kept = parts(config)
    (tmp_path / "inputs/texts.jsonl").rename(tmp_path / "inputs/renamed.jsonl")
    renamed = json.loads(json.dumps(config).replace("texts.jsonl", "renamed.jsonl"))
    second, _ = run(renamed, out=str(tmp_path / "second"))
    assert parts(config) == kept
    assert second.hash != first.hash
    before, after = contents(tmp_path / "out"), contents(tmp_path / "second")
    other = {name for name in before if before[name] != after[name]}
    assert before.keys() == after.keys()
    assert "documents.parquet" in other
    assert not any(name.endswith((".arrow", "rejects.jsonl")) for name in other)
    for folder, name in (("out", "texts"), ("second", "renamed")):
        ids = pq.read_table(tmp_path / folder / "documents.parquet", columns=["id"])["id"].to_pylist()
        assert sum(one.startswith(f"texts/{name}:") for one in ids) == 260
    with pytest.raises(OutputError):
        run(renamed)


def test_engines_and_tracing_do_not_matter(config: Config, tmp_path: Path) -> None:
    """They are part of what was asked for, and so of the plan; the rows are the same to the byte."""
    shards = set()
    plans = set()
    choices: list[Config] = [{}, {"engine": "tokenizers"}, {"trace": False}, {"engine": "tokenizers", "trace": False}]
    for number, settings in enumerate(choices):
        manifest, _ = run(config, out=str(tmp_path / f"{number}"), tokenizer={**config["tokenizer"], **settings})
        shards.add(tuple(shard.hash for shard in manifest.splits["train"].shards))
        plans.add(manifest.plan_hash)
    assert len(shards) == 1
    assert len(plans) >= 2


def test_shards_are_only_a_cut(config: Config, tmp_path: Path, read_rows: ReadRows) -> None:
    several, _ = run(config)
    one, _ = run(config, out=str(tmp_path / "one"), output={})
    parquet, _ = run(config, out=str(tmp_path / "parquet"), output={"format": "parquet", "shard_bytes": 1 << 17})
    counts = [len(manifest.splits["train"].shards) for manifest in (several, one, parquet)]
    assert counts[0] > counts[2] >= counts[1] == 1
    rows = read_rows(tmp_path / "out")
    assert rows == read_rows(tmp_path / "one") == read_rows(tmp_path / "parquet")
    assert len(rows) > 20


# --- never twice ---


def test_a_finished_run_is_found_at_once(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = run(config)
    before = contents(tmp_path / "out")

    def refuse(config: object, work: object) -> Manifest:
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(run_module, "make_dataset", refuse)
    again, heard = run(config)
    assert again.hash == first.hash
    assert again.to_json() == json.loads(json.dumps(first.to_json()))
    assert heard.work == []
    assert any("already finished" in note for note in heard.notes)
    assert contents(tmp_path / "out") == before
    # Where and how fast is no other question.
    faster, _ = run(config, run={"workers": 2, "memory": "3GiB", "report": False})
    assert faster.hash == first.hash


def test_touched_inputs_are_looked_at_and_found_the_same(config: Config, tmp_path: Path) -> None:
    first, _ = run(config)
    os.utime(tmp_path / "inputs/texts.jsonl")
    again, heard = run(config)
    assert again.hash == first.hash
    assert heard.work == []


REPLANNED: dict[str, Config] = {
    "mask": {"mask": "all"},
    "max_length": {"truncate": {"max_length": 128}},
    "overlong": {"truncate": {"max_length": 64, "overlong": "drop"}},
    "strategy": {"pack": {"strategy": "wrapped"}},
    "align": {"pack": {"align": 16}},
    "shuffle": {"pack": {"shuffle": False}},
    "seed": {"seed": 7},
    "holdout": {"holdout": {"fraction": 0.2}},
    "keep_untrained": {"keep_untrained": True},
    "format": {"output": {"format": "parquet"}},
}


def test_another_plan_encodes_nothing(config: Config, tmp_path: Path) -> None:
    first, heard = run(config)
    assert heard.work == ["encode", "pack"]
    encoded = parts(config)
    assert len(encoded) > 10
    hashes = {first.hash}
    for name, change in REPLANNED.items():
        manifest, heard = run(config, out=str(tmp_path / name), **change)
        assert heard.work == ["pack"], name
        hashes.add(manifest.hash)
    assert parts(config) == encoded
    assert len(hashes) == len(REPLANNED) + 1


def test_what_changes_the_text_encodes_again(
    config: Config, tmp_path: Path, make_tokenizer: Callable[..., Path]
) -> None:
    """Another style encodes the problems again and leaves the texts alone; what was there before stays."""
    run(config)
    before = parts(config)
    styled = [config["sources"][0], {**config["sources"][1], "apps": {"style": "classic"}}]
    _, heard = run(config, out=str(tmp_path / "classic"), sources=styled)
    problems = (tmp_path / "inputs/problems.jsonl").stat().st_size
    assert heard.totals["encode"] == problems
    other = make_tokenizer("other-template", template="{% for m in messages %}{{ m.content }}\n{% endfor %}")
    _, heard = run(config, out=str(tmp_path / "other"), tokenizer={"path": str(other)})
    assert heard.totals["encode"] >= problems
    after = parts(config)
    assert {name: after[name] for name in before} == before


def test_appended_rows_encode_only_their_blocks(config: Config, tmp_path: Path) -> None:
    texts = tmp_path / "inputs/texts.jsonl"
    first, _ = run(config)
    before = parts(config)
    size = texts.stat().st_size
    cut = size // 4000 * 4000 - 4000  # the last block begins behind here
    more = text_lines(260, 40)
    with texts.open("a") as file:
        file.write("\n".join(more) + "\n")
    grown, heard = run(config, out=str(tmp_path / "grown"))
    assert heard.work == ["encode", "pack"]
    added = texts.stat().st_size - size
    assert added < heard.totals["encode"] < added + (size - cut)
    after = parts(config)
    assert {name: after[name] for name in before} == before
    assert 2 <= len(after) - len(before) <= 8  # two files a part
    assert grown.ledger.sources["texts"].examples_made == first.ledger.sources["texts"].examples_made + 40
    assert grown.ledger.sources["problems"] == first.ledger.sources["problems"]


def test_equal_blocks_are_encoded_once(config: Config, tmp_path: Path) -> None:
    """A file that stands in two sources costs one encoding, and counts in both."""
    twice = [config["sources"][0], {**config["sources"][0], "name": "again"}]
    manifest, heard = run(config, sources=twice)
    assert heard.totals["encode"] == (tmp_path / "inputs/texts.jsonl").stat().st_size
    one, other = manifest.ledger.sources["texts"], manifest.ledger.sources["again"]
    assert one == other
    assert one.examples_made == 260


# --- another question ---


def test_another_configuration_is_refused_field_by_field(config: Config, tmp_path: Path) -> None:
    run(config)
    before = contents(tmp_path / "out")
    encoded = parts(config)
    with pytest.raises(OutputError) as caught:
        run(config, truncate={"max_length": 128, "keep": "end"}, seed=43, pack={"align": 4})
    said = str(caught.value).splitlines()
    assert [line.strip() for line in said if "→" in line and "(there" not in line] == [
        "pack.align: 1 → 4",
        "seed: 42 → 43",
        'truncate.keep: "start" → "end"',
        "truncate.max_length: 256 → 128",
    ]
    assert "Choose another folder" in said[-1]
    assert caught.value.exit_code == 2
    assert contents(tmp_path / "out") == before
    assert parts(config) == encoded
    # And the first configuration still finds its own.
    assert run(config)[1].work == []


def test_other_inputs_are_refused_by_name(config: Config, tmp_path: Path) -> None:
    run(config)
    before = contents(tmp_path / "out")
    with (tmp_path / "inputs/texts.jsonl").open("a") as file:
        file.write(text_lines(999, 1)[0] + "\n")
    with pytest.raises(OutputError, match=r"input texts of source texts: has changed since") as caught:
        run(config)
    assert "config." not in str(caught.value)
    assert contents(tmp_path / "out") == before


def test_a_folder_with_something_else_is_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match=r"has other content \(thesis.tex\)"):
        run(config)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


# --- holdout ---


def held_out(out: Path, read_rows: ReadRows) -> tuple[set[str], set[str]]:
    """(trained on, held out), by id."""
    names = {entry["doc_id"]: entry["id"] for entry in pq.read_table(out / "documents.parquet").to_pylist()}
    train, hold = (
        {names[doc_id] for row in read_rows(out, split) for doc_id in row["doc_ids"]} for split in ("train", "holdout")
    )
    assert not train & hold
    assert len(train) + len(hold) == len(names)
    return train, hold


@pytest.mark.parametrize("by", ["group", "example"])
def test_added_data_moves_nobody(config: Config, tmp_path: Path, by: str, read_rows: ReadRows) -> None:
    config["holdout"] = {"fraction": 0.3, "by": by}
    config["cache"] = str(tmp_path / "cache")
    run(config, out=str(tmp_path / "before"))
    train, hold = held_out(tmp_path / "before", read_rows)
    share = len(hold) / (len(train) + len(hold))
    assert 0.2 < share < 0.4

    for name, lines in (("texts", text_lines(260, 50)), ("problems", problem_lines(60, 20))):
        with (tmp_path / f"inputs/{name}.jsonl").open("a") as file:
            file.write("\n".join(lines) + "\n")
    run(config, out=str(tmp_path / "after"))
    train_after, hold_after = held_out(tmp_path / "after", read_rows)
    assert train <= train_after
    assert hold <= hold_after
    assert len(hold_after) > len(hold)

    def problem(key: str) -> str:
        return key.split("/")[1]

    grouped = [{problem(key) for key in side if key.startswith("problems/")} for side in (train_after, hold_after)]
    assert min(map(len, grouped)) > 10
    if by == "group":
        assert not grouped[0] & grouped[1]
    else:
        assert grouped[0] & grouped[1]  # or the test would say nothing of groups


def test_the_held_out_share_grows_by_adding(config: Config, tmp_path: Path, read_rows: ReadRows) -> None:
    """A larger fraction holds out everything that a smaller one did; another seed holds out others."""
    sides = {}
    changes: dict[str, Config] = {
        "tenth": {"holdout": {"fraction": 0.1}},
        "half": {"holdout": {"fraction": 0.5}},
        "other": {"holdout": {"fraction": 0.5}, "seed": 1},
    }
    for name, change in changes.items():
        run(config, out=str(tmp_path / name), **change)
        sides[name] = held_out(tmp_path / name, read_rows)[1]
    assert sides["tenth"] < sides["half"]
    assert not sides["half"] <= sides["other"]
    assert not sides["other"] <= sides["half"]


# --- order ---


def test_the_mixer_is_splitmix64() -> None:
    """The first numbers of the published generator, seeded with 1234567."""
    assert mix64(np.arange(5, dtype=np.uint64), 1234567).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_the_order_of_rows_is_pinned() -> None:
    """If this changes, every shuffled dataset that was made before is another."""
    plan = plan_rows(list(range(1, 11)), 10, "none")
    assert permute_rows(plan, 42).order.tolist() == [4, 1, 6, 2, 8, 3, 9, 0, 7, 5]
    assert permute_rows(plan, 43).lengths.tolist() == [5, 6, 10, 7, 3, 2, 9, 1, 4, 8]
    assert [window_seed(42, number) % 1000 for number in range(3)] == [413, 291, 858]


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(0, 2**64 - 1))
def test_an_order_is_a_permutation(lengths: list[int], seed: int) -> None:
    plan = plan_rows(lengths, 32, "bfd")
    permuted = permute_rows(plan, seed)

    def rows() -> Iterator[list[list[tuple[int, int, int]]]]:
        for one in (plan, permuted):
            pieces = list(zip(one.order.tolist(), one.starts.tolist(), one.lengths.tolist(), strict=True))
            ends = one.row_offsets.tolist()
            yield [pieces[a:b] for a, b in pairwise(ends)]

    before, after = rows()
    assert sorted(before) == sorted(after)
    assert permuted.certificate == plan.certificate
    assert np.array_equal(permuted.order, permute_rows(plan, seed).order)


def test_seeds_give_different_orders() -> None:
    plan = plan_rows([8] * 500, 8)
    orders = [permute_rows(plan, seed).order for seed in (0, 1, 2, 2**63)]
    for index, one in enumerate(orders):
        assert sorted(one.tolist()) == list(range(500))
        # About one place in 500 stays by chance, and neighbours are not kept together.
        assert np.count_nonzero(one == np.arange(500)) < 12
        assert np.count_nonzero(np.abs(np.diff(one)) == 1) < 12
        assert all(np.count_nonzero(one == other) < 12 for other in orders[:index])


def test_windows_are_shuffled_unlike_one_another(tmp_path: Path, plan_windows: Callable[..., list[WindowPlan]]) -> None:
    """Neither the same order nor the same one a few rows on: best fit puts the long documents first in each."""
    size, windows = 1000, 4
    lengths = np.full(size * windows, 8, np.int32)
    config = RunConfig.model_validate(
        {
            "out": "unused",
            "tokenizer": {"path": "unused"},
            "sources": [{"name": "s", "format": "text", "path": "unused"}],
            "truncate": {"max_length": 8},
            "pack": {"window_tokens": size * 8},
        }
    )
    store = LocalStore(tmp_path)
    plans = plan_windows(store, config, [size] * windows, [0] * windows, lengths)
    assert len(plans) == windows
    places = []
    for plan in plans:
        table = pa.ipc.open_file(pa.BufferReader(store.read(f"{plan.name}-pieces.arrow"))).read_all()
        places.append(np.argsort(table["doc_id"].to_numpy() % size))
    compared = 0
    for index, one in enumerate(places):
        assert sorted(one.tolist()) == list(range(size))
        for other in places[:index]:
            for shift in range(-5, 6):
                mine, theirs = one[5 + shift : size - 5 + shift], other[5 : size - 5]
                assert abs(np.corrcoef(mine, theirs)[0, 1]) < 0.15
                compared += 1
    assert compared == 66


def test_a_shuffled_dataset_has_the_same_rows(config: Config, tmp_path: Path, read_rows: ReadRows) -> None:
    run(config)
    run(config, out=str(tmp_path / "plain"), pack={"shuffle": False})
    shuffled, plain = read_rows(tmp_path / "out"), read_rows(tmp_path / "plain")
    assert shuffled != plain
    assert sorted(shuffled, key=str) == sorted(plain, key=str)
    longest = [max(row["seq_lengths"]) for row in plain]
    assert longest == sorted(longest, reverse=True)  # what best fit leaves behind, and the shuffle takes away
    mixed = [max(row["seq_lengths"]) for row in shuffled]
    assert abs(np.corrcoef(np.arange(len(mixed)), mixed)[0, 1]) < 0.4
