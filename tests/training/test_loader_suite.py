"""The loader at its public boundary: every row once, the same steps on any ranks, batches as a model takes them."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from packtrain.schemas.errors import ConfigError, IntegrityError
from packtrain.training import PackedLoader, collate

from tests import kit
from tests.support import warm
from tests.support.resumption import Shape, check_resumption
from tests.training.conftest import MakePacked

Batch = dict[str, Any]
Document = tuple[tuple[int, ...], tuple[int, ...]]
X = -100
ALONE: dict[str, Any] = {"rank": 0, "world_size": 1}


def documents(batch: Batch) -> list[Document]:
    """(ids, labels) of a batch's documents; the padding of fixed shapes is one without labels."""
    ids, labels, bounds = batch["input_ids"][0].tolist(), batch["labels"][0].tolist(), batch["cu_seq_lens_q"].tolist()
    return [(tuple(ids[a:b]), tuple(labels[a:b])) for a, b in pairwise(bounds) if a < b]


def stored(folder: Path, split: str = "train") -> list[list[Document]]:
    """The documents of each row, read with pyarrow alone."""
    rows = []
    for row in kit.Packed(folder).rows(split):
        bounds = [0, *np.cumsum(row["seq_lengths"]).tolist()]
        rows.append([(tuple(row["input_ids"][a:b]), tuple(row["labels"][a:b])) for a, b in pairwise(bounds)])
    return rows


def loader(data: Any, rows_per_step: int = 4, **options: Any) -> PackedLoader:
    return PackedLoader(data, rows_per_step=rows_per_step, **{**ALONE, **options})


def makes(data: Any, **options: Any) -> Callable[[int, Shape], PackedLoader]:
    """Loaders over the same data in every shape."""

    def make(rank: int, shape: Shape) -> PackedLoader:
        return loader(data, shape.rows_per_step, rank=rank, world_size=shape.world_size, **options)

    return make


# Every row once, on any ranks, resumed anywhere.


@pytest.mark.parametrize(("order", "balance"), [("sequential", 1), ("full", 1), ("full", 4)])
def test_every_row_once_an_epoch(folder: Path, order: str, balance: int) -> None:
    rows = stored(folder)
    everything = Counter(document for row in rows for document in row)
    options = {"epochs": 3, "order": order, "balance": balance, "seed": 3, "prefetch": 0}
    given = [documents(batch) for batch in loader(folder, 1, **options)]
    epochs = [given[begin : begin + len(rows)] for begin in range(0, len(given), len(rows))]
    assert len(epochs) == 3
    for epoch in epochs:
        assert Counter(document for row in epoch for document in row) == everything
    assert (epochs[0] == rows) == (balance == 1), "packing has shuffled the rows"
    assert (epochs == [rows] * 3) == (order == "sequential")
    assert (epochs[1] == epochs[2]) == (order == "sequential")


@pytest.mark.parametrize(("tail", "options"), [("drop", {"balance": 4}), ("pad", {"static_shapes": True})])
def test_resuming_at_every_step_on_any_other_shape(make_packed: MakePacked, tail: str, options: dict[str, Any]) -> None:
    make = makes(make_packed("other", 60), seed=5, epochs=2, tail=tail, **options)
    check_resumption(make, [Shape(1, 5), Shape(2, 4), Shape(3, 6), Shape(4, 8)], every=5)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_state_counts_what_was_returned_not_what_was_made(folder: Path, prefetch: int) -> None:
    one = loader(folder, 4, prefetch=prefetch)
    batches = iter(one)
    for number in range(1, 4):
        next(batches)
        assert one.state_dict()["rows"] == 4 * number
    expected = [documents(batch) for batch in loader(folder, 4)][3:]
    other = loader(folder, 4)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [documents(batch) for batch in other] == [documents(batch) for batch in batches] == expected
    assert len(expected) > 2


def test_accumulation_divides_a_step(folder: Path) -> None:
    whole = list(loader(folder, 8, rank=1, world_size=2, tail="pad"))
    parts = loader(folder, 8, rank=1, world_size=2, tail="pad", accumulate=2)
    assert len(parts) == 2 * len(whole)
    for number, batch in enumerate(list(parts)):
        own = documents(whole[number // 2])
        half = documents(batch)
        assert half == (own[: len(half)] if number % 2 == 0 else own[-len(half) :])
    again = loader(folder, 8, accumulate=2)
    batches = iter(again)
    next(batches)
    assert again.state_dict()["rows"] == 0
    next(batches)
    assert again.state_dict()["rows"] == 8


@pytest.mark.parametrize(("ranks", "balance"), [(4, 1), (8, 8)], ids=["dealt", "grouped"])
def test_costs_are_alike_on_all_ranks(make_packed: MakePacked, ranks: int, balance: int) -> None:
    """The tokens of the busiest rank over the mean, and what it would be if each rank took the next rows."""
    folder = make_packed("one by one", 170, strategy="none")
    hands = [list(loader(folder, 8, rank=rank, world_size=ranks, balance=balance)) for rank in range(ranks)]
    found = np.array([[batch["input_ids"].numel() for batch in step] for step in zip(*hands, strict=True)])
    tokens = np.array([sum(len(ids) for ids, _ in row) for row in stored(folder)])
    plain = tokens[: 8 * len(found)].reshape(-1, ranks, 8 // ranks).sum(axis=2)
    assert found.sum() == plain.sum(), "the same rows"
    busiest, expected = (float((work.max(axis=1) / work.mean(axis=1)).mean()) for work in (found, plain))
    assert busiest < 1 + 0.8 * (expected - 1)


# Batches.


def test_a_batch_is_what_a_model_takes(folder: Path) -> None:
    rows = kit.Packed(folder).rows()[:2]
    batch = next(iter(loader(folder, 2, order="sequential", seq_idx=True)))
    for name in ("input_ids", "labels", "position_ids"):
        assert batch[name].dtype == torch.int64
        assert batch[name].tolist() == [rows[0][name] + rows[1][name]]
    lengths = rows[0]["seq_lengths"] + rows[1]["seq_lengths"]
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        assert batch[name].dtype == torch.int32
        assert batch[name].tolist() == [0, *np.cumsum(lengths).tolist()]
    assert batch["max_length_q"] == batch["max_length_k"] == max(lengths)
    assert type(batch["max_length_q"]) is int
    assert batch["use_cache"] is False
    assert batch["seq_idx"].dtype == torch.int32
    assert batch["seq_idx"][0].tolist() == np.repeat(np.arange(len(lengths)), lengths).tolist()
    assert {"attention_mask", "loss_weights", "cu_seq_lens_unpadded"}.isdisjoint(batch)
    starts = batch["cu_seq_lens_q"][:-1].long()
    assert (batch["position_ids"][0, starts] == 0).all()
    assert (batch["labels"][0, starts] == X).all()
    collated = collate(list(datasets.load_from_disk(str(folder)).select(range(2))))
    for name, value in collated.items():
        same = torch.equal(value, batch[name]) if isinstance(value, torch.Tensor) else value == batch[name]
        assert same, name


def test_neighbours_that_are_read_as_one_slice_are_the_same_rows(weighted: Path) -> None:
    rows = kit.Packed(weighted).rows()
    batches = loader(weighted)
    assert len(shards(weighted)) > 1
    # Over the ends of record batches and shards, backwards, again, and by chance.
    last = len(rows) - 1
    picks = [[*range(len(rows))], [0], [last], [3, 2, 1], [last, 0, 1], [4, 4, 5, 5]]
    random = np.random.default_rng(0)
    for _ in range(50):
        first = int(random.integers(len(rows) - 1))
        picks.append([*range(first, last), *random.integers(len(rows), size=3).tolist()])
    for picked in picks:
        batch = batches.batch_of(picked)
        for name in ("input_ids", "labels", "position_ids", "loss_weights"):
            assert batch[name][0].tolist() == [value for index in picked for value in rows[index][name]], picked
        lengths = [length for index in picked for length in rows[index]["seq_lengths"]]
        assert batch["cu_seq_lens_q"].diff().tolist() == lengths, picked
        assert batch["max_length_q"] == max(lengths), picked
    for missing in ([last, last + 1], [-1, 0]):
        with pytest.raises(IndexError):
            batches.batch_of(missing)


def test_every_batch_has_the_same_shape(folder: Path) -> None:
    shapes, longest, pad = set(), set(), kit.Packed(folder).record["plan"]["tokenizer"]["pad_id"]
    flat = loader(folder, 3)
    for fixed, plain in zip(loader(folder, 3, static_shapes=True), flat, strict=True):
        shapes.add(tuple((name, tuple(value.shape)) for name, value in fixed.items() if torch.is_tensor(value)))
        longest.add((fixed["max_length_q"], fixed["max_length_k"]))
        found = documents(fixed)
        real = documents(plain)
        padding = list((Counter(found) - Counter(real)).elements())
        assert Counter(real) <= Counter(found)
        assert all(set(ids) == {pad} and set(labels) == {X} for ids, labels in padding)
        assert fixed["position_ids"][0].tolist() == [p for ids, _ in found for p in range(len(ids))]
    assert len(shapes) == 1
    assert longest == {(256, 256)}
    assert ("input_ids", (1, 3 * 256)) in next(iter(shapes))
    most = max(len(row) for row in stored(folder))
    assert ("cu_seq_lens_q", (3 * (most + 1) + 1,)) in next(iter(shapes))


def test_unpacked_documents_hold_the_same_tokens(folder: Path) -> None:
    flat = next(iter(loader(folder, 3)))
    padded = next(iter(loader(folder, 3, unpacked=True)))
    kept = padded["attention_mask"].bool()
    for name in ("input_ids", "labels", "position_ids"):
        assert torch.equal(padded[name][kept], flat[name][0])
    assert (padded["labels"][~kept] == X).all()
    assert padded["attention_mask"].sum(1).tolist() == flat["cu_seq_lens_q"].diff().tolist()


def test_weights_come_with_the_rows(weighted: Path) -> None:
    rows = kit.Packed(weighted).rows()
    expected = sum(sum(row["loss_weights"]) for row in rows)
    for options in ({}, {"static_shapes": True}, {"unpacked": True}, {"prefetch": 0}):
        total = 0.0
        for batch in loader(weighted, 4, tail="pad", **options):
            assert batch["loss_weights"].dtype == torch.float32
            assert torch.equal(batch["loss_weights"] > 0, batch["labels"] != X), options
            total += float(batch["loss_weights"].double().sum())
        assert total == pytest.approx(expected, rel=1e-6), options
    assert collate(rows[:2])["loss_weights"][0].tolist() == rows[0]["loss_weights"] + rows[1]["loss_weights"]


# States, ranks, documents of a step.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "0" * 32}, "dataset differs"),
        ({"seed": 2}, "seed differs"),
        ({"order": "sequential"}, "order differs"),
        ({"format": "\x1b[31m"}, r"format differs: here it is 4, in the state '\\x1b\[31m'"),
        ({"moon": 1}, "moon differs: here it is None, in the state 1"),
        ([], "state"),
        ({"rows": -1}, "rows differs: .* in the state -1"),
        ({"rows": 10**12}, r"after 1,000,000,000,000 rows"),
        ({"rows": True}, "in the state True"),
        ({"dataset": {"a": "b" * 500}}, r"in the state \{'a': 'b{40,60}\. Resuming"),
    ],
)
def test_states_of_others_and_damaged_ones_are_refused(folder: Path, change: Any, message: str) -> None:
    one = loader(folder, 2, seed=1)
    before = one.state_dict()
    with pytest.raises(ConfigError, match=message):
        one.load_state_dict({**before, **change} if isinstance(change, dict) else change)
    assert one.state_dict() == before
    assert len(list(one)) > 3


def test_the_rank_comes_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for environment, expected in (
        ({}, (0, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1)),  # a batch script, of a job with four tasks
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),  # before Slurm's
    ):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        place = PackedLoader(folder, rows_per_step=4).place
        assert (place.rank, place.world_size) == expected
    monkeypatch.setenv("RANK", "$SLURM_PROCID")
    with pytest.raises(ConfigError, match=r"RANK=\$SLURM_PROCID, WORLD_SIZE=4: both must be numbers"):
        PackedLoader(folder, rows_per_step=4)


def test_explain_names_the_documents_of_a_step(folder: Path) -> None:
    ranks = [loader(folder, 6, rank=rank, world_size=2) for rank in (0, 1)]
    rows = stored(folder)
    for number, hands in enumerate(zip(*ranks, strict=True)):
        placed = ranks[0].explain(number)
        for rank, batch in enumerate(hands):
            mine = [one for one in placed if one.rank == rank]
            assert [one.tokens for one in mine] == batch["cu_seq_lens_q"].diff().tolist()
            assert [d for row in dict.fromkeys(one.row for one in mine) for d in rows[row]] == documents(batch)
        assert {(one.source, one.id) for one in placed} == {("text", f"text/{one.file}:{one.line}") for one in placed}
    with pytest.raises(IndexError, match="no step 1000"):
        ranks[0].explain(1000)


# Damage: an error that names the file, and a process that ends.


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    shutil.copytree(folder, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tmp_path / "copy"


def shards(folder: Path) -> list[Path]:
    return [folder / shard["name"] for shard in kit.Packed(folder).record["splits"]["train"]["shards"]]


@pytest.mark.parametrize("fault", ["cut", "grown", "gone", "empty", "pipe", "link", "folder", "garbage"])
def test_a_damaged_shard_is_an_error_at_its_own_batch(copied: Path, tmp_path: Path, fault: str) -> None:
    last = shards(copied)[-1]
    data = last.read_bytes()
    last.unlink()
    if fault == "pipe":
        os.mkfifo(last)
    elif fault == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        last.symlink_to(tmp_path / "elsewhere")
    elif fault == "folder":
        last.mkdir()
    elif fault != "gone":
        damaged = {"cut": data[:-8], "grown": data + b"x", "empty": b"", "garbage": bytes(len(data))}
        last.write_bytes(damaged[fault])
    batches = iter(loader(copied, 1))
    good = 0
    with pytest.raises(IntegrityError, match=last.name):  # noqa: PT012  # and no batch before
        for _ in batches:
            good += 1
    before = sum(shard["rows"] for shard in kit.Packed(copied).record["splits"]["train"]["shards"][:-1])
    assert good == before > 3


def test_a_damaged_document_table_is_an_error(copied: Path) -> None:
    """Compared with its hash before it is read: over some damage, pyarrow ends the process."""
    path = copied / "documents.parquet"
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 20)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(IntegrityError, match=r"documents\.parquet cannot be read: its content does not match"):
            loader(copied, 4).explain(0)


def test_a_file_cut_under_a_running_loader_is_an_error_that_ends_the_process(copied: Path, tmp_path: Path) -> None:
    """Reading behind the end of a mapped file kills a process, so another one tries."""
    other = shutil.copytree(copied, tmp_path / "other")
    program = """
import os, sys
from packtrain.schemas.errors import IntegrityError
from packtrain.training import PackedLoader

def cut(folder, victim, prefetch):
    loader = PackedLoader(folder, rows_per_step=4, epochs=50, rank=0, world_size=2, prefetch=prefetch)
    at = loader.steps.at

    def cutting(position):  # by the thread that reads, and not while it does
        if position == 8:
            os.truncate(victim, 64)
        return at(position)

    loader.steps.at = cutting
    for batch in loader:
        pass

try:
    cut(sys.argv[1], sys.argv[2], 0)
except IntegrityError as error:
    print(error)
cut(sys.argv[3], sys.argv[4], 2)
"""
    victims = (copied, copied / "rows.arrow", other, shards(other)[0])
    done = warm.run(["python", "-c", program, *victims], modules=warm.TRAINING)
    assert done.returncode == 1, done.stderr
    assert "rows.arrow was changed while it was read" in done.stdout
    assert f"{shards(other)[0].name} was changed while it was read" in done.stderr


def python(program: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_a_program_may_end_while_batches_are_made(folder: Path) -> None:
    """A thread that the interpreter stops in the middle of foreign code aborts the process: once in a few ends."""
    program = f"""
import os, sys, torch
from packtrain.training import PackedLoader

def read():
    loaders = [iter(PackedLoader({str(folder)!r}, rows_per_step=32, epochs=100)) for _ in range(3)]
    for loader in loaders:
        next(loader)

codes = set()
for _ in range(5):
    child = os.fork()
    if not child:
        break
    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    print(codes)
    sys.exit()
read()
"""
    done = python(program)
    assert (done.stdout, done.stderr) == ("{0}\n", "")


@pytest.mark.slow
def test_a_process_that_reads_and_needs_little(folder: Path) -> None:
    """Nothing but pyarrow, numpy, torch, pydantic, msgspec and blake3; memory that does not grow; and a quiet end in
    the middle of a loop, while its thread makes batches.
    """
    program = """
import gc, sys
for name in "datasets polars pandas transformers tokenizers xxhash rich typer".split():
    sys.modules[name] = None
from packtrain.training import PackedLoader, PackedStream

def anonymous():
    gc.collect()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

def tokens(epochs):
    loader = PackedLoader(sys.argv[1], rows_per_step=1, epochs=epochs, prefetch=2)
    return sum(batch["input_ids"].numel() for batch in loader)

print(tokens(3))
before = anonymous()
tokens(20)
print(anonymous() - before)
print([name for name in sys.modules if name.startswith(("packtrain.pipeline", "packtrain.stages"))])
kept = iter(PackedLoader(sys.argv[1], rows_per_step=2, epochs=1000, prefetch=8))
next(kept)
"""
    done = python(program, folder)
    assert (done.returncode, done.stderr) == (0, "")
    tokens, grown, loaded = done.stdout.splitlines()
    assert int(tokens) == 3 * sum(len(ids) for row in stored(folder) for ids, _ in row)
    assert int(grown) < 8 << 10  # KiB
    assert loaded == "[]"
