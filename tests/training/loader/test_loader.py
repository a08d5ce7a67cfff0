"""The loader: every row exactly once, in the same steps, on any number of ranks, workers and rows a step."""

import hashlib
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from packtrain.schemas.errors import ConfigError, InputError, IntegrityError  # noqa: E402
from packtrain.schemas.rows import IGNORE_INDEX  # noqa: E402
from packtrain.training import PackedDataset, PackedIterable, PackedLoader, collate  # noqa: E402
from packtrain.training.order.balance import Balance  # noqa: E402
from packtrain.training.order.steps import Step  # noqa: E402
from packtrain.training.testing import Shape, check_resumption  # noqa: E402


def steps(loader: PackedLoader, count: int | None = None) -> list[Step]:
    """The next steps as the loader assigns them, without making batches."""
    out = []
    for _ in range(len(loader) if count is None else min(count, len(loader))):
        step = loader.steps.at(loader._rows)
        loader._rows += step.real
        loader._tokens += step.tokens
        out.append(step)
    return out


def rows_of(step: Step) -> list[int]:
    """The rows of a step that count."""
    return sorted(step.rows[: step.real].tolist())


@pytest.mark.parametrize("order", ["sequential", "full", "blocks"])
@pytest.mark.parametrize("balance", [None, Balance(8, 4)])
def test_every_row_once_an_epoch(folder: Path, order: str, balance: Balance | None) -> None:
    loader = PackedLoader(folder, rows_per_step=5, epochs=3, tail="pad", order=order, balance=balance, seed=3)
    size = len(loader.corpus)
    found = [row for step in steps(loader) for row in step.rows[: step.real].tolist()]
    assert len(found) == 3 * size
    for epoch in range(3):
        assert sorted(found[epoch * size : (epoch + 1) * size]) == list(range(size))
    if order != "sequential":
        assert found[size : 2 * size] != found[2 * size :]


def test_a_step_holds_the_same_rows_on_any_number_of_ranks(folder: Path) -> None:
    for world in (1, 2, 3, 6, 12):
        loaders = [
            PackedLoader(folder, rows_per_step=12, rank=rank, world_size=world, tail="pad", balance=Balance(8, 4))
            for rank in range(world)
        ]
        alone = PackedLoader(folder, rows_per_step=12, tail="pad", balance=Balance(8, 4))
        for number, expected in enumerate(steps(alone)):
            hands = [loader.steps.at(number * 12) for loader in loaders]
            assert all(rows_of(step) == rows_of(expected) for step in hands)
            dealt = sorted(index for rank, step in enumerate(hands) for index in step.rank_rows[rank])
            assert dealt == list(range(12))


@pytest.mark.parametrize(
    ("tail", "options"),
    [
        ("pad", {"balance": Balance(8, 4)}),
        pytest.param("repeat", {"order": "blocks"}, marks=pytest.mark.slow),
        pytest.param("drop", {"balance": Balance(8, 4), "first_epoch_sequential": False}, marks=pytest.mark.slow),
        ("pad", {"static_shapes": True}),
    ],
)
def test_resuming_at_every_step_on_any_other_shape(make_packed: Any, tail: str, options: dict[str, Any]) -> None:
    folder = make_packed("some", 60)  # the work grows with the square of its rows

    def make(rank: int, shape: Shape) -> PackedLoader:
        return PackedLoader(
            folder,
            rows_per_step=shape.rows_per_step,
            num_workers=shape.num_workers,
            rank=rank,
            world_size=shape.world_size,
            seed=5,
            epochs=2,
            tail=tail,
            **options,
        )

    shapes = [Shape(1, 5), Shape(2, 4, num_workers=1), Shape(3, 6), Shape(4, 8, num_workers=2)]
    assert check_resumption(make, shapes, every=3) > 100


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_state_counts_what_was_returned_not_what_was_fetched(folder: Path, workers: int) -> None:
    loader = PackedLoader(folder, rows_per_step=4, num_workers=workers, prefetch=4)
    batches = iter(loader)
    for number in range(1, 4):
        next(batches)
        assert loader.state_dict()["rows"] == 4 * number
    expected = [batch["input_ids"].tolist() for batch in PackedLoader(folder, rows_per_step=4, num_workers=0)][3:]
    second = PackedLoader(folder, rows_per_step=4, num_workers=workers)
    second.load_state_dict(loader.state_dict())
    assert [batch["input_ids"].tolist() for batch in second] == expected
    assert len(expected) > 2


def test_the_tail(folder: Path) -> None:
    size = len(PackedDataset(folder))
    width = 7 if size % 7 else 5
    whole, rest = divmod(size, width)
    assert rest
    for tail, count in (("drop", whole), ("pad", whole + 1), ("repeat", whole + 1)):
        for rank in range(width):
            loader = PackedLoader(folder, rows_per_step=width, rank=rank, world_size=width, tail=tail, balance=None)
            assert len(loader) == count
            assert len(list(loader)) == count, "every rank makes as many steps"
    last = [
        list(PackedLoader(folder, rows_per_step=width, rank=rank, world_size=width, tail="pad", balance=None))[-1]
        for rank in range(width)
    ]
    trained = [bool((batch["labels"] != IGNORE_INDEX).any()) for batch in last]
    assert trained == [True] * rest + [False] * (width - rest)


def test_a_batch_is_what_a_model_takes(folder: Path) -> None:
    dataset = PackedDataset(folder)
    loader = PackedLoader(folder, rows_per_step=2, order="sequential", balance=None, seq_idx=True)
    batch = next(iter(loader))
    rows = [dataset[0], dataset[1]]
    for name in ("input_ids", "labels", "position_ids"):
        assert batch[name].dtype == torch.int64
        assert torch.equal(batch[name], torch.cat([row[name] for row in rows]).unsqueeze(0))
    lengths = torch.cat([row["seq_lengths"] for row in rows])
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert batch["cu_seq_lens_q"].tolist() == [0, *np.cumsum(lengths.numpy()).tolist()]
    assert batch["max_length_q"] == batch["max_length_k"] == int(lengths.max())
    assert isinstance(batch["max_length_q"], int)
    assert batch["use_cache"] is False
    assert "attention_mask" not in batch
    starts = batch["cu_seq_lens_q"][:-1].long()
    assert (batch["position_ids"][0, starts] == 0).all()
    assert (batch["labels"][0, starts] == IGNORE_INDEX).all()
    assert batch["seq_idx"][0].tolist() == np.repeat(np.arange(len(lengths)), lengths).tolist()
    collated = collate(rows)
    for name, value in collated.items():
        same = torch.equal(value, batch[name]) if isinstance(value, torch.Tensor) else value == batch[name]
        assert same, name


def test_unpacked_documents_hold_the_same_tokens(folder: Path) -> None:
    flat = next(iter(PackedLoader(folder, rows_per_step=3, balance=None)))
    padded = next(iter(PackedLoader(folder, rows_per_step=3, balance=None, unpacked=True)))
    kept = padded["attention_mask"].bool()
    assert torch.equal(padded["input_ids"][kept], flat["input_ids"][0])
    assert torch.equal(padded["labels"][kept], flat["labels"][0])
    assert torch.equal(padded["position_ids"][kept], flat["position_ids"][0])
    assert (padded["labels"][~kept] == IGNORE_INDEX).all()
    assert padded["input_ids"].shape[0] == len(flat["cu_seq_lens_q"]) - 1


def test_a_dataset_in_torch_own_loader(folder: Path) -> None:
    dataset = PackedDataset(folder)
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[3]["input_ids"], dataset[3]["input_ids"])
    assert torch.equal(dataset[-1]["labels"], dataset[len(dataset) - 1]["labels"])
    loader = torch.utils.data.DataLoader(dataset, batch_size=3, collate_fn=collate, num_workers=1)
    total = sum(batch["input_ids"].numel() for batch in loader)
    assert total == sum(len(dataset[i]["input_ids"]) for i in range(len(dataset)))


def test_states_of_others_are_refused(folder: Path) -> None:
    loader = PackedLoader(folder, rows_per_step=2, seed=1)
    state = loader.state_dict()
    for change, message in (
        ({"fingerprint": "0" * 32}, "another dataset"),
        ({"seed": 2}, "seed differs"),
        ({"order": "blocks"}, "order differs"),
        ({"format": 0}, "format 2, not 0"),
        ({"moon": 1}, "not the state of a PackedLoader"),
    ):
        with pytest.raises(ValueError, match=message):
            loader.load_state_dict({**state, **change})


DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"rows": -1}, r"rows: -1, which should be a count"),
    ({"rows": 10**30}, r"rows: a number of 100 bits, which should be a count"),
    ({"rows": 10**12}, r"is after 1,000,000,000,000 rows"),
    ({"rows": "12"}, r"rows: '12', which should be a count"),
    ({"rows": 2.0}, r"rows: 2.0, which"),
    ({"rows": True}, r"rows: True, which"),
    ({"rows": None}, r"rows: None, which"),
    ({"tokens": 10**9}, r"of 1,000,000,000 tokens"),
    ({"epochs": []}, r"epochs: \[\], which"),
    ({"order": 3}, r"order: 3, which should be text"),
    ({"fingerprint": {"a": "b" * 500}}, r"fingerprint: \{'a': 'b+\.\.\., which should be text"),
    ({"first_epoch_sequential": 1}, r"first_epoch_sequential: 1, which should be true or false"),
    ({"balance_block": 7, "balance_group": 3}, r"must be a multiple"),
    ({"format": "\x1b[31m"}, r"not '\\x1b\[31m'"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGED)
def test_damaged_states_are_refused_in_words(folder: Path, change: dict[str, Any], message: str) -> None:
    loader = PackedLoader(folder, rows_per_step=2, seed=1)
    before = loader.state_dict()
    with pytest.raises(ConfigError, match=message):
        loader.load_state_dict({**before, **change})
    assert loader.state_dict() == before
    assert sum(1 for _ in loader) == loader.steps.left(0)


@pytest.mark.parametrize("state", [None, [], "state", 3, {}, {"format": 2}])
def test_what_is_no_state_is_refused_in_words(folder: Path, state: Any) -> None:
    with pytest.raises(ConfigError, match=r"state"):
        PackedLoader(folder, rows_per_step=2).load_state_dict(state)
    iterable = PackedIterable(PackedLoader(folder, rows_per_step=2))
    for given in (state, {"start": state, "handed": 0}, {**iterable.state_dict(), "handed": -1}):
        with pytest.raises(ConfigError, match=r"state"):
            iterable.load_state_dict(given)


def test_a_state_of_more_epochs_is_at_the_end(folder: Path) -> None:
    longer = PackedLoader(folder, rows_per_step=2, epochs=3)
    state = {**longer.state_dict(), "rows": longer.total_rows}
    loader = PackedLoader(folder, rows_per_step=2)
    loader.load_state_dict(state)
    assert len(loader) == 0


def test_torchs_loader_around_the_loader_says_what_to_take(folder: Path) -> None:
    loader = torch.utils.data.DataLoader(PackedLoader(folder, rows_per_step=2))
    with pytest.raises(ConfigError, match=r"PackedIterable\(loader\), batch_size=None"):
        next(iter(loader))


def test_bytes_are_compared_with_their_hash_once_if_asked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    read: list[str] = []
    digest = hashlib.file_digest

    def counted(file: Any, name: Any) -> Any:
        read.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    monkeypatch.setattr(
        "packtrain.training.shards.dataset_rows.OPEN_SHARDS", 1
    )  # so that shards are opened again and again
    whole = [batch["input_ids"].tolist() for batch in PackedLoader(copy, rows_per_step=2, epochs=2)]
    assert not read
    loader = PackedLoader(copy, rows_per_step=2, epochs=2, verify="first")
    assert [batch["input_ids"].tolist() for batch in loader] == whole
    shards = sorted(path.name for path in copy.glob("shards/*"))
    assert len(shards) > 1
    assert sorted(read) == sorted([*shards, "rows.arrow"])
    again = pickle.loads(pickle.dumps(loader.corpus.parts[0]))
    assert again.files.verify == "first"
    damaged = copy / "shards" / shards[-1]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1  # a token: size and shape stay
    damaged.chmod(0o644)
    damaged.write_bytes(data)
    assert sum(1 for _ in PackedLoader(copy, rows_per_step=2)) > 0
    with pytest.raises(IntegrityError, match=rf"{shards[-1]} is damaged: its SHA-256 begins with"):
        for _ in PackedLoader(copy, rows_per_step=2, verify="first"):
            pass
    with pytest.raises(ConfigError, match="verify='always': choose one of never, first"):
        PackedDataset(copy, verify="always")


def test_mistakes_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows_per_step=10 .* 4 ranks.* take 8 or 12"):
        PackedLoader(folder, rows_per_step=10, rank=0, world_size=4)
    with pytest.raises(InputError, match=r"no manifest\.json, so it is not a finished dataset"):
        PackedLoader(tmp_path, rows_per_step=1)
    with pytest.raises(InputError, match="no split 'holdout'; it has train"):
        PackedLoader(folder, rows_per_step=1, split="holdout")
    with pytest.raises(ValueError, match="both rank and world_size"):
        PackedLoader(folder, rows_per_step=1, rank=0)


@pytest.mark.parametrize(
    ("environment", "rank", "world"),
    [
        ({}, 0, 1),
        ({"RANK": "2", "WORLD_SIZE": "4"}, 2, 4),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, 1, 2),
        ({"RANK": "2", "WORLD_SIZE": "4", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, 2, 4),
    ],
)
def test_the_place_comes_from_the_environment(
    folder: Path, environment: dict[str, str], rank: int, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    place = PackedLoader(folder, rows_per_step=4).place
    assert (place.rank, place.world_size) == (rank, world)


def test_explain_names_the_documents_of_a_step(folder: Path) -> None:
    loader = PackedLoader(folder, rows_per_step=4, rank=1, world_size=2, balance=Balance(8, 4))
    placed = loader.explain(2)
    assert {one.rank for one in placed} == {0, 1}, "of every rank, not only this one"
    step = loader.steps.at(8)
    for rank in (0, 1):
        rows = [int(step.rows[index]) for index in step.rank_rows[rank]]
        mine = [one for one in placed if one.rank == rank]
        assert [one.row for one in mine] == [row for row in rows for _ in loader.corpus.row(row).seq_lengths]
        assert sum(one.tokens for one in mine) == loader.corpus.tokens_of(np.array(rows)).sum()
    for one in placed:
        assert one.source == "text"
        assert one.id == f"text/{one.file}:{one.line}"
        assert 1 <= one.line <= 170
    with pytest.raises(IndexError, match="no step 1000"):
        loader.explain(1000)


def test_balance_makes_ranks_alike(folder: Path) -> None:
    def unevenness(balance: Balance | None) -> float:
        loader = PackedLoader(
            folder, rows_per_step=4, rank=0, world_size=4, balance=balance, order="full", first_epoch_sequential=False
        )
        ratios = []
        for step in steps(loader):
            costs = loader.schedule.global_order.costs(step.rows)
            sums = [costs[hand].sum() for hand in step.rank_rows]
            ratios.append(max(sums) / np.mean(sums))
        return float(np.mean(ratios))

    assert unevenness(Balance(len(PackedDataset(folder)) // 4 * 4, 4)) <= unevenness(None)


@pytest.mark.slow
def test_a_trainer_needs_nothing_of_the_pipeline(folder: Path) -> None:
    """pyarrow, numpy, torch and pydantic are enough: everything else is made unimportable, and ours is not loaded.

    Nor does the stream load any of it before it has a configuration.
    """
    program = """
import sys
others = "datasets polars pandas transformers tokenizers blake3 msgspec xxhash rich typer"
for name in others.split():
    sys.modules[name] = None
from packtrain.training import PackedLoader
print(sum(b["input_ids"].numel() for b in PackedLoader(sys.argv[1], rows_per_step=2, tail="pad")))
import packtrain.training.loader.packed_stream
print([name for name in sys.modules if name.startswith(("packtrain.pipeline", "packtrain.stages"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    dataset = PackedDataset(folder)
    tokens, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    assert int(tokens) >= sum(len(dataset[i]["input_ids"]) for i in range(len(dataset))) > 0
