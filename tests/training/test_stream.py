"""The stream: every row once, the same steps on any number of ranks, and exact resumption, without stored shards."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

torch = pytest.importorskip("torch")

from packtrain.pipeline.stream.stream import LiveWindows  # noqa: E402
from packtrain.pipeline.stream.window import PlannedWindow  # noqa: E402
from packtrain.schemas.config.config import RunConfig  # noqa: E402
from packtrain.schemas.errors import ConfigError, IntegrityError  # noqa: E402
from packtrain.schemas.ledger import Ledger, SourceLedger  # noqa: E402
from packtrain.schemas.rows import IGNORE_INDEX, PACKED  # noqa: E402
from packtrain.training import PackedStream  # noqa: E402

from tests.support import warm  # noqa: E402
from tests.support.resumption import Shape, check_resumption  # noqa: E402

WINDOW = 8_000
"""Bytes: a handful of windows an epoch."""
Batch = dict[str, Any]
Open = Callable[..., PackedStream]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> dict[str, Any]:
    """Nine small files, so nine blocks, of two sources; documents of very different lengths, some rows useless."""
    folder = tmp_path_factory.mktemp("stream")
    for number in range(9):
        rows = [{"text": f"{number} {i} " + "word and " * (i * i % 71)} for i in range(16)]
        if number < 4:
            rows = [{"prompt": f"{number} {i}?", "completion": "yes " * (1 + i * i % 53)} for i in range(20)]
        lines = [json.dumps(row) for row in rows]
        (folder / f"{number}.jsonl").write_text("\n".join([*lines, "[]"]) + "\n")
    return {
        "out": str(folder / "data"),
        "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
        "sources": [
            {"name": "pairs", "format": "prompt_completion", "path": [str(folder / f"{n}.jsonl") for n in range(4)]},
            {"name": "texts", "format": "text", "path": [str(folder / f"{n}.jsonl") for n in range(4, 9)]},
        ],
        "truncate": {"max_length": 256},
        "run": {"workers": 1, "report": False},
    }


@pytest.fixture
def stream(config: dict[str, Any]) -> Iterator[Open]:
    """Opens a stream that encodes in this process, rank 0 of 1; closed at the end."""
    opened = []

    def open_stream(data: Any = None, **more: Any) -> PackedStream:
        options = {"rows_per_step": 4, "window_bytes": WINDOW, "workers": 0, "rank": 0, "world_size": 1}
        opened.append(PackedStream(data or config, **{**options, **more}))
        return opened[-1]

    yield open_stream
    for one in opened:
        one.close()


class Replayed:
    """The windows of two epochs, planned once, to be walked by many streams."""

    def __init__(self, windows: LiveWindows) -> None:
        self.seed, self.fingerprint = windows.seed, windows.fingerprint
        self._windows = list(windows.walk(0, 0, 2))

    def walk(self, epoch: int, number: int, epochs: int) -> Iterator[PlannedWindow]:
        """See `LiveWindows.walk`."""
        return (one for one in self._windows if (epoch, number) <= (one.epoch, one.number) < (epochs, 0))

    def stop(self) -> None:
        """See `LiveWindows.stop`."""

    def close(self) -> None:
        """See `LiveWindows.close`."""


@pytest.fixture(scope="module")
def replayed(config: dict[str, Any]) -> Replayed:
    """What `config` gives."""
    windows = LiveWindows(RunConfig.model_validate(config), window_bytes=WINDOW, workers=0)
    try:
        return Replayed(windows)
    finally:
        windows.close()


def documents(batch: Batch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(tokens, labels) of every document of a batch, in order."""
    ids, labels, bounds = batch["input_ids"][0].tolist(), batch["labels"][0].tolist(), batch["cu_seq_lens_q"].tolist()
    return [(tuple(ids[a:b]), tuple(labels[a:b])) for a, b in pairwise(bounds)]


def all_documents(batches: list[Batch]) -> "Counter[tuple[tuple[int, ...], tuple[int, ...]]]":
    """How often each document stands in batches."""
    return Counter(document for batch in batches for document in documents(batch))


def flat(batches: list[Batch]) -> list[int]:
    """All tokens and labels, one after another."""
    return [value for name in ("input_ids", "labels") for batch in batches for value in batch[name][0].tolist()]


def test_a_batch_is_what_a_model_takes(stream: Open) -> None:
    seen = 0
    for batch in stream(seq_idx=True, tail="pad"):
        total = batch["input_ids"].shape[1]
        for name in ("input_ids", "labels", "position_ids"):
            assert batch[name].shape == (1, total)
            assert batch[name].dtype == torch.int64
        bounds = batch["cu_seq_lens_q"]
        assert bounds.dtype == torch.int32
        assert bounds[0] == 0
        assert bounds[-1] == total
        lengths = bounds.diff()
        assert batch["max_length_q"] == batch["max_length_k"] == int(lengths.max())
        assert batch["use_cache"] is False
        assert "attention_mask" not in batch
        assert batch["position_ids"][0].tolist() == [p for n in lengths.tolist() for p in range(n)]
        assert (batch["labels"][0, bounds[:-1].long()] == IGNORE_INDEX).all()
        trained = batch["labels"] != IGNORE_INDEX
        assert (batch["labels"][trained] == batch["input_ids"][trained]).all()
        assert batch["seq_idx"][0].tolist() == [d for d, n in enumerate(lengths.tolist()) for _ in range(n)]
        seen += 1
    assert seen > 5


def test_a_configuration_comes_as_data_or_as_a_file(config: dict[str, Any], stream: Open, tmp_path: Path) -> None:
    file = tmp_path / "stream.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    loaded = RunConfig.model_validate(config)
    first = [flat([next(iter(stream(data)))]) for data in (config, file, str(file), loaded)]
    assert first == [first[0]] * 4


def test_the_account_is_of_the_windows_begun(stream: Open) -> None:
    live = stream()
    assert live.ledger.to_json() == {}
    read = []
    for _ in live:
        live.ledger.check()
        read.append(live.ledger.total().rows_read)
    assert read == sorted(read)
    assert len(set(read)) > 3
    assert live.ledger.total().rows_read == 4 * 21 + 5 * 17
    assert sum(live.ledger.total().rows_rejected.values()) == 9


def test_two_epochs_count_twice_and_differ(stream: Open) -> None:
    once, twice = stream(rows_per_step=1), stream(rows_per_step=1, epochs=2)
    first, both = list(once), list(twice)
    assert flat(both[: len(first)]) == flat(first)
    assert flat(both[len(first) :]) != flat(first)
    assert all_documents(both[len(first) :]) == all_documents(first)
    assert twice.ledger.total().tokens_packed == 2 * once.ledger.total().tokens_packed
    twice.ledger.check()


def test_the_tail(stream: Open) -> None:
    rows = list(stream(rows_per_step=1))
    size = len(rows) - 3
    real = [d for batch in rows[size:] for d in documents(batch)]
    first = [d for batch in rows[: size - 3] for d in documents(batch)]
    assert len(list(stream(rows_per_step=size))) == 1
    for tail in ("pad", "repeat"):
        live = stream(rows_per_step=size, tail=tail)
        whole, last = list(live)
        assert documents(whole) == [d for batch in rows[:size] for d in documents(batch)]
        assert documents(last)[: len(real)] == real
        filler = documents(last)[len(real) :]
        assert [ids for ids, _ in filler] == [ids for ids, _ in first]
        if tail == "pad":
            assert all(label == IGNORE_INDEX for _, labels in filler for label in labels)
        else:
            assert filler == first
        assert live.state_dict()["rows"] == len(rows)
        assert list(live) == []


def test_the_filler_goes_round_when_there_are_few_rows(stream: Open) -> None:
    rows = list(stream(rows_per_step=1))
    (batch,) = stream(rows_per_step=2 * len(rows) + 1, tail="repeat")
    every = [d for one in rows for d in documents(one)]
    assert documents(batch) == every + every + documents(rows[0])


@pytest.mark.parametrize("tail", ["drop", "pad", "repeat"])
def test_a_step_is_the_same_on_any_ranks_wherever_they_resume(stream: Open, replayed: Replayed, tail: str) -> None:
    def make(rank: int, shape: Shape) -> PackedStream:
        # What is not replayed is planned again, which takes longer.
        data = None if shape == Shape(1, 20) else replayed
        options = {"rows_per_step": shape.rows_per_step, "rank": rank, "world_size": shape.world_size}
        return stream(data, epochs=2, tail=tail, **options)

    assert check_resumption(make, [Shape(1, 20), Shape(2, 4), Shape(3, 6)], every=4) > 50


def test_all_ranks_have_one_ledger(stream: Open, replayed: Replayed) -> None:
    ranks = [stream(replayed, rows_per_step=6, rank=rank, world_size=3) for rank in range(3)]
    for _ in zip(*ranks, strict=True):
        assert all(one.ledger == ranks[0].ledger for one in ranks)


def test_the_state_counts_what_was_returned_not_what_was_planned(stream: Open) -> None:
    live = stream(workers=2, epochs=3)
    walk = iter(live)
    for number in range(1, 4):
        next(walk)
        assert live.state_dict()["rows"] == 4 * number
    del walk
    assert flat([next(iter(live))]) == flat([list(stream())[3]])


def test_a_state_of_another_stream_is_refused(config: dict[str, Any], stream: Open, tmp_path: Path) -> None:
    live = stream()
    next(iter(live))
    state = live.state_dict()
    stream(rows_per_step=3, epochs=7, tail="pad").load_state_dict(state)
    changed = tmp_path / "changed.jsonl"
    changed.write_bytes(Path(config["sources"][0]["path"][0]).read_bytes() + b'{"prompt": "a", "completion": "b"}\n')
    others = {
        "seed": stream(seed=1),
        "windows": stream(window_bytes=WINDOW + 1),
        "configuration": stream({**config, "mask": "all"}),
        "inputs": stream(
            {**config, "sources": [{**config["sources"][0], "path": str(changed)}, *config["sources"][1:]]}
        ),
    }
    for what, other in others.items():
        with pytest.raises(ValueError, match=f"another stream: {what} differ"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="format 2, not 7"):
        live.load_state_dict({**state, "format": 7})
    with pytest.raises(ValueError, match="not the state of a PackedStream"):
        live.load_state_dict({"format": 2, "epoch": 3})
    for change in ({"rows": -1}, {"window": 10**30}, {"epoch": "1"}, {"fingerprint": ["a"]}, {"row": None}):
        with pytest.raises(ConfigError, match=f"{next(iter(change))}: .*, which should be"):
            live.load_state_dict({**state, **change})


def test_options_out_of_range_are_refused(stream: Open) -> None:
    with pytest.raises(ConfigError, match=r"take 4 or 8"):
        stream(rows_per_step=6, world_size=4)
    with pytest.raises(ConfigError, match="choose one of drop, pad, repeat"):
        stream(tail="cut")
    with pytest.raises(ConfigError, match="epochs=0"):
        stream(epochs=0)
    with pytest.raises(ConfigError, match="not one step would be full"):
        list(stream(rows_per_step=10_000))


def test_explain_names_the_documents_of_the_last_step(config: dict[str, Any], stream: Open) -> None:
    live = stream(rows_per_step=6, rank=1, world_size=3)
    for number, batch in enumerate(live):
        placed = live.explain()
        mine = [one.document for one in placed if one.rank == 1]
        assert [one.tokens for one in mine] == batch["cu_seq_lens_q"].diff().tolist()
        for document, (ids, _) in zip(mine, documents(batch), strict=True):
            names = {source["name"]: source["path"] for source in config["sources"]}
            path = next(path for path in names[document.source] if Path(path).stem == document.file)
            row = json.loads(Path(path).read_text().splitlines()[document.line - 1])
            text = row.get("text") or row["prompt"] + row["completion"]
            assert document.id == f"{document.source}/{document.file}:{document.line}"
            assert len(ids) <= len(text) + 1
        if number == 3:
            return
    raise AssertionError("too few steps to have looked at any")


TRAINER = """
import hashlib, json, os, signal, sys
from packtrain.training import PackedStream

config, folder, stop = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
stream = PackedStream(config, rows_per_step=3, window_bytes=int(sys.argv[4]), workers=1, epochs=2, rank=0, world_size=1)
try:
    stream.load_state_dict(json.load(open(f"{folder}/state.json")))
except FileNotFoundError:
    pass
for step, batch in enumerate(stream):
    values = b"".join(batch[name].numpy().tobytes() for name in ("input_ids", "labels", "position_ids"))
    with open(f"{folder}/batches", "a") as out:
        out.write(hashlib.sha256(values).hexdigest() + "\\n")
    with open(f"{folder}/new.json", "w") as out:
        json.dump(stream.state_dict(), out)
    os.replace(f"{folder}/new.json", f"{folder}/state.json")
    if step == stop:
        print("stopped", flush=True)
        signal.pause()
print("finished", flush=True)
"""


@pytest.mark.slow
def test_killed_in_the_middle_of_a_window_it_goes_on_with_the_same_bytes(
    config: dict[str, Any], stream: Open, tmp_path: Path, new_cache: Callable[[], Path], tiny_tokenizer: Path
) -> None:
    config = {**config, "cache": str(new_cache())}

    def train(stop: int) -> warm.Process:
        arguments = [json.dumps(config), str(tmp_path), str(stop), str(WINDOW)]
        return warm.Process(["python", "-c", TRAINER, *arguments], modules=warm.TRAINING)

    with train(4) as first:
        assert first.stdout.readline() == "stopped\n"
        first.kill()
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["rows"] == 15
    assert state["row"] > 0, "the step ended with its window: choose another one"
    with train(-1) as second:
        assert second.stdout.readline() == "finished\n"
    written = (tmp_path / "batches").read_text().split()
    whole = [
        hashlib.sha256(b"".join(batch[name].numpy().tobytes() for name in ("input_ids", "labels", "position_ids")))
        for batch in stream(rows_per_step=3, epochs=2)
    ]
    assert written == [one.hexdigest() for one in whole]
    assert len(written) > 16


class FewRows:
    """A window of literal rows: row r of window w holds the token 10 w + r, r + 1 times, in two documents."""

    def __init__(self, epoch: int, number: int, rows: int) -> None:
        self.epoch, self.number, self.rows = epoch, number, rows
        self.tokens = np.arange(2, rows + 2)
        self.ledger = Ledger({"source": SourceLedger(rows_read=1, rows_used=1)})

    def lay_out(self, first: int, last: int) -> pa.RecordBatch:
        """See `packed_stream.Window`."""
        rows = []
        for r in range(first, last):
            ids = [10 * self.number + r] * (r + 2)
            rows.append(
                {
                    "input_ids": ids,
                    "labels": ids,
                    "position_ids": [*range(r + 1), 0],
                    "seq_lengths": [r + 1, 1],
                    "doc_starts": [0, 0],
                    "doc_ids": [0, 1],
                }
            )
        return pa.RecordBatch.from_pylist(rows, schema=PACKED)

    def documents(self, first: int, last: int) -> list[Any]:
        """See `packed_stream.Window`."""
        return []


class FewWindows:
    """Windows of 3, 0, 2 and 1 rows, the same in every epoch."""

    seed = 5
    fingerprint: dict[str, str] = {"numbers": "1"}  # noqa: RUF012

    def __init__(self, sizes: tuple[int, ...] = (3, 0, 2, 1)) -> None:
        self.sizes = sizes
        self.stopped = 0

    def walk(self, epoch: int, number: int, epochs: int) -> Iterator[FewRows]:
        """See `packed_stream.Windows`."""
        for e in range(epoch, epochs):
            for n in range(number if e == epoch else 0, len(self.sizes)):
                yield FewRows(e, n, self.sizes[n])

    def stop(self) -> None:
        """See `packed_stream.Windows`."""
        self.stopped += 1

    def close(self) -> None:
        """See `packed_stream.Windows`."""


def test_windows_of_ones_own_step_by_step(stream: Open) -> None:
    windows = FewWindows()
    live = stream(windows, rows_per_step=4, epochs=2, tail="pad")
    seen = []
    for batch in live:
        state = live.state_dict()
        place = (state["epoch"], state["window"], state["row"], state["rows"])
        seen.append((batch["input_ids"][0].tolist(), batch["cu_seq_lens_q"].tolist(), place))
    one, two, three, x, y, z = [0] * 2, [1] * 3, [2] * 4, [20] * 2, [21] * 3, [30] * 2
    assert seen == [
        ([*one, *two, *three, *x], [0, 1, 2, 4, 5, 8, 9, 10, 11], (0, 2, 1, 4)),
        ([*y, *z, *one, *two], [0, 2, 3, 4, 5, 6, 7, 9, 10], (1, 0, 2, 8)),
        ([*three, *x, *y, *z], [0, 3, 4, 5, 6, 8, 9, 10, 11], (1, 4, 0, 12)),
    ]
    assert windows.stopped == 1
    assert live.ledger.total().rows_read == 8
    live.load_state_dict(live.state_dict())
    assert list(live) == []
    longer = stream(FewWindows(), rows_per_step=4, epochs=3)
    longer.load_state_dict(live.state_dict())
    assert [batch["input_ids"][0].tolist() for batch in longer] == [[*one, *two, *three, *x]]


def test_a_window_that_has_shrunk_is_noticed(stream: Open) -> None:
    live = stream(FewWindows(), rows_per_step=2)
    next(iter(live))
    shrunk = stream(FewWindows((1, 1)), rows_per_step=2)
    shrunk.load_state_dict(live.state_dict())
    with pytest.raises(IntegrityError, match="has 1 rows, but the state is at row 2"):
        next(iter(shrunk))
