"""Baselines: the same documents as the packed rows hold, every one once an epoch, and resumable."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from packtrain.schemas.errors import ConfigError  # noqa: E402
from packtrain.training import PackedLoader, Source  # noqa: E402
from packtrain.training.testing import Pieces, pieces_of  # noqa: E402
from packtrain.training.trainer.baselines import BaselineLoader, unpacked_loader  # noqa: E402


def baseline(folder: Path, batching: str, **options: Any) -> BaselineLoader:
    order, documents = options.pop("document_order", "random"), options.pop("documents_per_step", None)
    given = {"rows_per_step": 4, "num_workers": 0, **options}
    found = unpacked_loader(PackedLoader(folder, **given), batching, order=order, documents_per_step=documents)
    assert isinstance(found, BaselineLoader)
    return found


def documents_of(batch: dict[str, Any]) -> Pieces:
    """Of either kind of batch, padding taken away."""
    if "attention_mask" not in batch:
        return pieces_of(batch)
    lengths = batch["attention_mask"].sum(1).tolist()
    return Counter(
        (ids[:length].numpy().tobytes(), labels[:length].numpy().tobytes())
        for ids, labels, length in zip(batch["input_ids"], batch["labels"], lengths, strict=True)
    )


@pytest.mark.parametrize("batching", ["padded", "padding_free"])
@pytest.mark.parametrize("order", ["random", "length"])
def test_an_epoch_holds_the_documents_of_the_packed_rows(folder: Path, batching: str, order: str) -> None:
    packed: Pieces = sum(map(pieces_of, PackedLoader(folder, rows_per_step=1, num_workers=0)), Counter())
    loader = baseline(folder, batching, tail="pad", document_order=order, documents_per_step=1)
    assert sum(map(documents_of, loader), Counter()) == packed
    assert packed.total() > 100
    assert loader.state_dict()["documents"] == packed.total()
    assert loader.state_dict()["rows"] == len(loader.corpus)


def test_a_step_holds_as_many_documents_as_packed_rows_do(folder: Path) -> None:
    packed = PackedLoader(folder, rows_per_step=4, num_workers=0)
    loader = baseline(folder, "padding_free")
    tokens = [batch["input_ids"].numel() for batch in packed]
    unpacked = [batch["input_ids"].numel() for batch in loader]
    assert abs(len(tokens) - len(unpacked)) <= 1
    assert sum(unpacked) / len(unpacked) == pytest.approx(sum(tokens) / len(tokens), rel=0.1)


def test_padded_batches_have_a_mask_and_padding_free_ones_have_bounds(folder: Path) -> None:
    padded, free = (next(iter(baseline(folder, mode, documents_per_step=6))) for mode in ("padded", "padding_free"))
    assert documents_of(padded) == documents_of(free)
    assert padded["input_ids"].shape == (6, int(padded["attention_mask"].sum(1).max()))
    assert "cu_seq_lens_q" not in padded
    assert free["input_ids"].shape == (1, int(padded["attention_mask"].sum()))
    assert "attention_mask" not in free
    assert len(free["cu_seq_lens_q"]) == 7
    assert (padded["labels"][padded["attention_mask"] == 0] == -100).all()


def test_like_lengths_together_leave_less_padding(folder: Path) -> None:
    shares = {}
    for order in ("random", "length"):
        masks = [b["attention_mask"].float() for b in baseline(folder, "padded", document_order=order)]
        shares[order] = 1 - sum(float(m.sum()) for m in masks) / sum(m.numel() for m in masks)
    print(f"padding: random {shares['random']:.1%}, by length {shares['length']:.1%}")
    assert shares["length"] < shares["random"] / 2


def test_ranks_and_micro_batches_share_a_step(folder: Path) -> None:
    alone = [documents_of(batch) for batch in baseline(folder, "padded", documents_per_step=12)]
    ranks = [
        list(baseline(folder, "padded", documents_per_step=12, rank=rank, world_size=2, accumulate=2))
        for rank in (0, 1)
    ]
    assert [len(batches) for batches in ranks] == [2 * len(alone)] * 2
    for step, expected in enumerate(alone):
        parts = [documents_of(batch) for batches in ranks for batch in batches[2 * step : 2 * step + 2]]
        assert [part.total() for part in parts] == [3] * 4
        assert sum(parts, Counter()) == expected


@pytest.mark.parametrize("order", ["random", "length"])
def test_it_goes_on_where_it_stopped(folder: Path, order: str) -> None:
    def make(**options: Any) -> BaselineLoader:
        return baseline(
            folder, "padded", epochs=2, tail="pad", documents_per_step=12, document_order=order, seed=3, **options
        )

    whole, states = [], []
    loader = make()
    for batch in loader:
        whole.append(documents_of(batch))
        states.append(loader.state_dict())
    assert len(whole) > 20
    assert states[-1]["documents"] == loader.total
    assert states[-1]["tokens"] == 2 * int(loader.documents.length.sum())
    for stop in range(0, len(whole) - 1, 5):
        again = make(accumulate=2)
        again.load_state_dict(states[stop])
        rest = [documents_of(batch) for batch in again]
        assert [one + two for one, two in zip(rest[::2], rest[1::2], strict=True)] == whole[stop + 1 :]
    first, second = whole[: len(whole) // 2], whole[len(whole) // 2 :]
    assert first != second, "epochs differ"
    with pytest.raises(ConfigError, match="seed differs"):
        make().load_state_dict(states[0] | {"seed": 4})


def test_the_state_moves_with_the_last_micro_batch_of_a_step(folder: Path) -> None:
    loader = baseline(folder, "padding_free", rows_per_step=6, documents_per_step=6, accumulate=3)
    batches = iter(loader)
    counts = []
    for _ in range(6):
        next(batches)
        counts.append(loader.state_dict()["documents"])
    assert counts == [0, 0, 6, 6, 6, 12]


def test_the_tail(folder: Path) -> None:
    size = len(baseline(folder, "padded").documents)
    width = 7 if size % 7 else 6
    sizes = {tail: len(baseline(folder, "padded", tail=tail, documents_per_step=width)) for tail in ("drop", "pad")}
    assert sizes == {"drop": size // width, "pad": size // width + 1}
    *_, last = baseline(folder, "padded", tail="pad", documents_per_step=width)
    assert len(last["input_ids"]) == width
    untrained = (last["labels"] == -100).all(1)
    assert untrained.tolist() == [index >= size % width for index in range(width)]
    *_, last = baseline(folder, "padded", tail="repeat", documents_per_step=width)
    assert not (last["labels"] == -100).all(1).any()


def test_what_makes_no_sense_is_refused(folder: Path) -> None:
    loader = PackedLoader(folder, rows_per_step=4, rank=0, world_size=2)
    assert unpacked_loader(loader, "packed") is loader
    for arguments, message in (
        (("padding",), "choose one of packed, padding_free, padded"),
        (("padded", 7), "take a multiple of 2"),
        (("padded", 10_000), "only 170 in all"),
    ):
        with pytest.raises(ConfigError, match=message):
            unpacked_loader(loader, arguments[0], documents_per_step=arguments[1] if len(arguments) > 1 else None)
    mixed = PackedLoader([Source(str(folder), epochs=1), Source(str(folder), epochs=2)], rows_per_step=4)
    with pytest.raises(ConfigError, match="compares on one dataset"):
        unpacked_loader(mixed, "padded")


def test_bounds_of_documents_are_those_of_the_rows(folder: Path) -> None:
    loader = baseline(folder, "padded")
    row = loader.corpus.row(3)
    bounds = [0, *row.seq_lengths.cumsum().tolist()]
    mine = (loader.documents.row == 3).nonzero()[0].tolist()
    found = [loader.documents.strip(index) for index in mine]
    expected = [row.input_ids[begin:end].tolist() for begin, end in pairwise(bounds)]
    assert [strip.input_ids.tolist() for strip in found] == expected
