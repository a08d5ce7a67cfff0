"""Compares the loader with other loaders and with the speed of memory, and measures it at a billion rows.

    python tests/bench/bench_loader.py [--work DIR] [--parts memory first speed divide wait train] [--rounds 5]

Prints Markdown tables. To compare with peers: `pip install mosaicml-streaming torchdata grain`; one that cannot be
imported is named with the reason. The data are made here: texts of lognormal length, packed by `packtrain.run` into
rows of 4,096 tokens, some 300 MB of shards in the default size, all in the page cache. One process reads them.

speed: rows to flattened int64 batches, see `loader_peers`. Contenders run in turns, for a moment each, in every
round, and go on where they stopped, so that shards stay mapped; a cell is the median of the rounds, a ratio the median
of the rounds' ratios. The first batch of each turn is not counted. First of all each delivers one epoch, whose tokens,
ids, labels, positions and documents must have the sums that they have in the shards. The limit is a bare copy: rows to
int64 arrays, no tensors, no order, no documents. Fresh arrays of a megabyte come from the kernel, page by page, every
time; the same ones again show what that costs.

first: time from a loader, made and set to its position, to its first batch. The billion rows are a manifest that lists
the real shards again and again; each entry is opened as a shard of its own; the cost of its rows is looked up in the
real rows. Places are random.

memory: what the process holds for itself (RssAnon) after each of 20 epochs.

divide: the same rows for two devices that share each batch (cp_size=2), beside one device alone. Both datasets are
packed for it (`pack.parallel`); a step is that of the whole batch, of which each device reads its part.

wait: the share of a step that its consumer spends in next(), when it sleeps for the rest as long as a GPU would
compute: 60,000 tokens/s, one GPU of the H200 class with a model of 1B parameters, and 400,000, as eight would ask.

train: the same beside real training steps of a tiny Llama, whose forward and backward pass keep all cores busy. Loaders
without a thread and with one run in turns, a few steps each, in every round. Cold: the page cache is dropped before
each turn.
"""

import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.bench.corpus import load, make_parser, median, print_header, print_table, spread, work_folder
    from tests.bench.loader_peers import (
        IGNORED,
        IN_ORDER,
        SHUFFLED,
        TOKEN_COLUMNS,
        Batch,
        Contender,
        all_contenders,
        map_chunks,
    )
else:
    from corpus import *  # noqa: F403  # the same names: a script finds its neighbours by its own folder
    from loader_peers import *  # noqa: F403

MAX_LENGTH = 4096
TOKENS = 28_000_000
ROWS_A_STEP = (1, 8, 32)
MOMENT = 0.4
"""Seconds of one contender's turn."""
PEERS = ("mosaicml-streaming", "datasets", "trl", "torchdata", "grain")
BILLION = 1_000_000_000
PLACES = 20
RECORDS = 100_000
PEER_FACTOR, LIMIT_SHARE = 10, 0.5
FIRST_LIMIT, WAIT_LIMIT = 0.050, 0.01
EPOCHS = 20
RATES = (60_000, 400_000)
TRAIN_STEPS = ((1, 24), (8, 4))
"""Rows a step, and steps of one contender's turn."""


def make_data(work: Path, name: str = "loader-data", parallel: dict[str, Any] | None = None) -> Path:
    """A packed dataset of known sizes and random words; made once per work folder."""
    import packtrain
    from tokenizers import Tokenizer

    tokenizer = Path(str(files("packtrain.pipeline.demo") / "tokenizer"))
    rows = work / "loader-rows.jsonl"
    if not rows.exists():
        vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab()
        words = np.array(sorted(word for word in vocabulary if word.isascii() and word.isalpha()))
        random_ = np.random.default_rng(0)
        left = TOKENS
        with rows.with_suffix(".part").open("w", encoding="utf-8") as file:
            while left > 0:
                size = int(np.clip(random_.lognormal(6.2, 1.1), 16, 3900))
                # A word and the space before it are some two tokens.
                file.write(json.dumps({"text": " ".join(random_.choice(words, size // 2))}) + "\n")
                left -= size
        rows.with_suffix(".part").rename(rows)
    config = {
        "out": str(work / name),
        "cache": str(work / "loader-cache"),
        "tokenizer": {"path": str(tokenizer)},
        "sources": [{"name": "words", "format": "text", "path": str(rows)}],
        "truncate": {"max_length": MAX_LENGTH},
        "pack": {"parallel": parallel},
        "run": {"report": False},
    }
    packtrain.run(config)
    return work / name


def shard_paths(folder: Path) -> list[Path]:
    """The shards of the train split."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    return [folder / shard["name"] for shard in manifest["splits"]["train"]["shards"]]


# Speed.


def endless(contender: Contender, rows: int) -> Iterator[Batch]:
    """Its batches, pass after pass."""
    return chain.from_iterable(contender.passes(rows) for _ in count())


def tokens_a_second(batches: Iterator[Batch]) -> float:
    """Measured over one turn, from the first batch's arrival on."""
    next(batches)
    tokens = taken = 0.0
    began = time.perf_counter()
    for batch in batches:
        tokens += batch["input_ids"].shape[1]
        if (taken := time.perf_counter() - began) > MOMENT:
            break
    return tokens / taken


def sums(batches: Iterator[Batch]) -> dict[str, int]:
    """Sums that do not depend on the order of rows."""
    found = dict.fromkeys(("tokens", "ids", "labels", "positions", "documents"), 0)
    for batch in batches:
        ids, labels, positions = (np.asarray(batch[name]) for name in TOKEN_COLUMNS)
        found["tokens"] += ids.size
        found["ids"] += int(ids.sum())
        found["labels"] += int(labels[labels != IGNORED].sum())
        found["positions"] += int(positions.sum())
        found["documents"] += len(batch.get("cu_seq_lens_q", [0])) - 1
    return found


def check(contenders: Sequence[Contender], folder: Path) -> None:
    """Check that every contender delivers the rows of the shards.

    Raises:
        SystemExit: one does not.
    """
    columns = [chunk.columns for chunk in map_chunks(shard_paths(folder))]
    labels = [column["labels"][0] for column in columns]
    expected = {
        "tokens": sum(column["input_ids"][0].size for column in columns),
        "ids": sum(int(column["input_ids"][0].sum(dtype=np.int64)) for column in columns),
        "labels": sum(int(values[values != IGNORED].sum(dtype=np.int64)) for values in labels),
        "positions": sum(int(column["position_ids"][0].sum(dtype=np.int64)) for column in columns),
        "documents": sum(column["seq_lengths"][0].size for column in columns),
    }
    rows = sum(len(column["input_ids"][1]) - 1 for column in columns)
    for contender in contenders:
        found = sums(islice(endless(contender, 1), rows))
        # A bare copy and TRL's collator say nothing of documents.
        if found != expected and found != expected | {"documents": 0}:
            raise SystemExit(f"{contender.name} gives {found}, but the shards hold {expected}")


def print_speed(folder: Path, work: Path, rounds: int) -> None:
    """Tokens a second of every contender, for every number of rows a step."""
    contenders, missing = all_contenders(folder, work)
    check(contenders, folder)
    print_header(f"Rows of {MAX_LENGTH:,} tokens to int64 batches, {rounds} rounds", ("packtrain", "torch", "numpy"))
    print("Peers: " + ", ".join(installed(name) for name in PEERS) + ".\n")
    for name, reason in missing.items():
        print(f"Left out: {name}, {reason}.\n")
    for rows in ROWS_A_STEP:
        rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        running = {contender.name: endless(contender, rows) for contender in contenders}
        for _ in range(rounds):
            for name, batches in running.items():
                rates[name].append(tokens_a_second(batches) / 1e6)
        print(f"{rows} rows a step; {load()}", file=sys.stderr, flush=True)
        print_rates(contenders, rates, rows)


def print_rates(contenders: Sequence[Contender], rates: dict[str, list[float]], rows: int) -> None:
    """One number of rows a step; and how packtrain with its defaults compares with the targets."""

    def ratio(name: str, other: str) -> float:
        return median([mine / theirs for mine, theirs in zip(rates[name], rates[other], strict=True)])

    table = []
    for contender in contenders:
        name = contender.name
        cells = [f"{ratio(ours, name):.2f}" for ours in (IN_ORDER, SHUFFLED)]
        bare = [f"{ratio(name, limit):.2f}" for limit in limits(contenders, contender.permuted)]
        table.append([name, contender.kind, spread(rates[name], 0), *cells, *bare])
    print(f"{rows} rows a step:\n")
    header = ["loader", "kind", "M tokens/s", "packtrain in order / this", "packtrain full / this"]
    print_table([*header, "this / bare, fresh arrays", "this / bare, same arrays"], table, left=2)
    for name, permuted in ((IN_ORDER, False), (SHUFFLED, True)):
        peers = [c.name for c in contenders if c.kind == "peer" and c.permuted == permuted]
        peers.sort(key=lambda peer: -median(rates[peer]))
        share = ratio(name, limits(contenders, permuted)[0])
        print(f"{name}: {share:.2f} of the bare copy with fresh arrays (target: at least {LIMIT_SHARE})", end="")
        best = (
            f"; {ratio(name, peers[0]):.1f} times the best peer in such an order, {peers[0]} (target: {PEER_FACTOR})"
            if peers
            else ""
        )
        print(f"{best}.\n")


def limits(contenders: Sequence[Contender], permuted: bool) -> list[str]:
    """The bare copies of the same order: with fresh arrays, with the same ones again."""
    return [other.name for other in contenders if other.kind == "limit" and other.permuted == permuted]


def installed(name: str) -> str:
    """A package and its version, if there is one."""
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} (not installed)"


# The first batch.


def repeat_manifest(folder: Path, out: Path, records: int) -> int:
    """A dataset whose manifest lists the shards of another again and again; returns its rows."""
    from packtrain.schemas.manifest import Manifest

    manifest = Manifest.from_json(json.loads((folder / "manifest.json").read_bytes()))
    split = manifest.splits["train"]
    shards = tuple(islice(chain.from_iterable(split.shards for _ in count()), records))
    splits = {**manifest.splits, "train": replace(split, shards=shards)}
    out.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name != "manifest.json" and not (out / path.name).exists():
            (out / path.name).symlink_to(path)
    (out / "manifest.json").write_text(json.dumps(replace(manifest, splits=splits).to_json()), encoding="utf-8")
    return sum(shard.rows for shard in shards)


class Tiled:
    """The costs of the real rows, repeated: replaces a file of twelve gigabytes."""

    def __init__(self, real: Any, size: int) -> None:
        self.real, self.size = real, size

    def tokens(self, rows: Any) -> Any:
        """See `RowSizes`."""
        return self.real.tokens(rows % self.size)

    def of(self, rows: Any) -> Any:
        """See `RowSizes`."""
        return self.real.of(rows % self.size)


def print_first(folder: Path, work: Path) -> None:
    """How long a loader takes to be made, and then to give a batch from anywhere."""
    from packtrain.training import PackedLoader
    from packtrain.training.shards import dataset_rows as home
    from packtrain.training.steps import Balance

    real = PackedLoader(folder, rows_per_step=8)
    sizes = Tiled(real.corpus.parts[0].sizes, real.total_rows)
    shards, rows = len(shard_paths(folder)), real.total_rows
    records = -(-BILLION * shards // rows)
    many = work / "loader-billion"
    total = repeat_manifest(folder, many, records)
    variants: list[tuple[str, Path, dict[str, Any]]] = [
        ("as it comes", folder, {}),
        ("as it comes", many, {}),
        *(
            (f"{order}, {name}", many, {"order": order, "first_epoch_sequential": False, "balance": balance})
            for order in ("full", "blocks")
            for name, balance in (("no balance", None), ("balance", Balance()))
        ),
    ]
    table = []
    for name, where, options in variants:
        if where is many:
            home.RowSizes = lambda *_: sizes  # type: ignore[assignment,attr-defined]
        began = time.perf_counter()
        loader = PackedLoader(where, rows_per_step=8, **options)
        made = time.perf_counter() - began
        taken = first_batches(loader, random.Random(0))
        cells = [f"{made * 1e3:,.0f}", f"{median(taken) * 1e3:.1f}", f"{max(taken) * 1e3:.1f}"]
        table.append([name, f"{loader.total_rows:,}", *cells, "yes" if max(taken) < FIRST_LIMIT else "NO"])
    print_header(f"Time to the first batch of 8 rows, {PLACES} places", ("packtrain", "pyarrow", "numpy"))
    print(f"{total:,} rows are {records:,} entries of {shards} shards with {rows:,} rows.\n")
    limit = f"all < {FIRST_LIMIT * 1e3:.0f} ms"
    print_table(["order", "rows", "make the loader, ms", "first batch, ms", "slowest, ms", limit], table)
    repeat_manifest(folder, many, RECORDS)
    size = (many / "manifest.json").stat().st_size
    spent = [timed(lambda: PackedLoader(many, rows_per_step=8, balance=None)) for _ in range(3)]
    print(
        f"Made from a manifest of {RECORDS:,} shards ({size / 1e6:.0f} MB of JSON, which it reads and parses): "
        f"{median(spent):.2f} s.\n"
    )


def first_batches(loader: Any, places: random.Random) -> list[float]:
    """Seconds to a batch from random places, one after another."""
    taken = []
    for _ in range(PLACES):
        row = places.randrange(loader.total_rows - loader.rows_per_step)
        loader.load_state_dict(loader.state_dict() | {"rows": row})
        began = time.perf_counter()
        batches = iter(loader)
        next(batches)
        taken.append(time.perf_counter() - began)
        batches.close()
    return taken


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# Memory, and waiting.


def anonymous_bytes() -> int:
    """Memory of this process that is not backed by a file."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this kernel's /proc/self/status has no RssAnon; nothing can be said of memory")


def print_memory(folder: Path) -> None:
    """What a process holds, epoch after epoch."""
    from packtrain.training import PackedLoader

    loader = PackedLoader(folder, rows_per_step=8, epochs=EPOCHS)
    size = loader.total_rows // EPOCHS
    held, epochs_done = [], 0
    before = anonymous_bytes()
    for _ in loader:
        if loader.state_dict()["rows"] // size > epochs_done:
            epochs_done += 1
            held.append(anonymous_bytes())
    if len(held) < EPOCHS:
        held.append(anonymous_bytes())
    print_header(f"Memory over {EPOCHS} epochs, 8 rows a step", ("packtrain", "torch", "numpy"))
    shown = [1, 2, 3, 5, 10, 15, 20]
    cells = [f"{(held[epoch - 1] - before) / 2**20:.1f}" for epoch in shown]
    print_table(["after epoch", *map(str, shown)], [["MiB more than before the first batch", *cells]])
    print(f"From the second epoch to the last: {(held[-1] - held[1]) / 2**20:+.1f} MiB (target: flat).\n")


def print_wait(folder: Path) -> None:
    """The share of a step spent in next()."""
    from packtrain.training import PackedLoader

    table = []
    for order in ("sequential", "full"):
        for rate in RATES:
            for workers in (1, 0):
                options: dict[str, Any] = {"order": order, "first_epoch_sequential": False, "num_workers": workers}
                loader = PackedLoader(folder, rows_per_step=8, epochs=10, **options)
                waits, slept = wait_times(iter(loader), rate)
                share = sum(waits) / (sum(waits) + slept)
                row = [f"{order}, num_workers={workers}", f"{rate:,}", f"{slept / len(waits) * 1e3:.0f}"]
                row += [f"{median(waits) * 1e3:.3f}", f"{max(waits) * 1e3:.3f}", f"{share:.3%}"]
                table.append([*row, "yes" if share < WAIT_LIMIT else "NO"])
    print_header("Waiting for a batch of 8 rows, warm page cache", ("packtrain", "torch", "numpy"))
    header = ["order", "tokens/s of the consumer", "ms it computes", "ms it waits", "longest, ms", "share"]
    print_table([*header, f"< {WAIT_LIMIT:.0%}"], table)


def print_divide(work: Path, rounds: int) -> None:
    """What a step of the loader takes if two devices share each batch."""
    from packtrain.training import PackedLoader

    table = []
    for layout in ("thd", "ring"):
        folder = make_data(work, f"loader-{layout}", {"cp": 2, "layout": layout})
        for rows in ROWS_A_STEP:
            times: dict[tuple[int, int], list[float]] = {(size, n): [] for n in (0, 1) for size in (1, 2)}
            for _ in range(rounds):
                for size, workers in times:
                    place = {"rank": 0, "world_size": 1, "cp_rank": size - 1, "cp_size": size}
                    options: dict[str, Any] = {"order": "sequential", "epochs": 100, "num_workers": workers, **place}
                    batches = iter(PackedLoader(folder, rows_per_step=rows, **options))
                    times[size, workers].append(step_time(batches) * 1e3)
            for workers in (0, 1):
                alone, shared = times[1, workers], times[2, workers]
                ratio = median([two / one for one, two in zip(alone, shared, strict=True)])
                table.append([layout, str(workers), str(rows), spread(alone, 3), spread(shared, 3), f"{ratio:.2f}"])
    print_header(f"Batches divided between two devices, {rounds} rounds", ("packtrain", "torch", "numpy"))
    print_table(["layout", "threads", "rows a step", "ms a step, alone", "ms, its part of it", "ratio"], table, left=1)


def step_time(batches: Iterator[Batch]) -> float:
    """Seconds of a step, over a moment. The first is not counted."""
    next(batches)
    began, steps = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < MOMENT:
        next(batches)
        steps += 1
    return took / steps


def wait_times(batches: Iterator[Batch], rate: int, seconds: float = 4.0) -> tuple[list[float], float]:
    """Seconds in each next() but the first, and seconds slept in all."""
    waits: list[float] = []
    slept = 0.0
    batch = next(batches)
    while slept < seconds:
        began = time.perf_counter()
        time.sleep(batch["input_ids"].shape[1] / rate)
        woke = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - woke)
        slept += woke - began
    return waits, slept


def print_train(folder: Path, rounds: int) -> None:
    """Whether a thread helps or disturbs a training that computes on the same cores."""
    import torch
    from packtrain.training import PackedLoader
    from packtrain.training.attention import use_packed
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = max(int(chunk.columns["input_ids"][0].max()) for chunk in map_chunks(shard_paths(folder))) + 1
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=vocabulary, num_hidden_layers=2, max_position_embeddings=MAX_LENGTH, **shape)
    model = LlamaForCausalLM(config)
    use_packed(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: Batch) -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    table = []
    for order, cold in (("sequential", False), ("full", False), ("full", True)):
        for rows, steps in TRAIN_STEPS:
            options: dict[str, Any] = {"order": order, "first_epoch_sequential": False, "epochs": 10}
            found: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
            for round_ in range(rounds):
                for workers in (0, 1) if round_ % 2 else (1, 0):
                    if cold:
                        forget(folder)
                    batches = iter(PackedLoader(folder, rows_per_step=rows, num_workers=workers, **options))
                    step(next(batches))
                    found[workers].append(train_times(batches, steps, step))
            ratios = [alone[0] / thread[0] for alone, thread in zip(found[0], found[1], strict=True)]
            for workers, name in ((0, "none"), (1, "one")):
                times, waits = ([one[index] * 1e3 for one in found[workers]] for index in (0, 1))
                share = median([wait / whole for whole, wait in zip(times, waits, strict=True)])
                row = [
                    f"{order}, cold" if cold else order,
                    str(rows),
                    name,
                    spread(times, 1),
                    f"{median(waits):.3f}",
                    f"{share:.3%}",
                ]
                table.append([*row, f"{median(ratios):.3f}" if workers else ""])
    print_header(f"Beside real training steps, {rounds} rounds", ("packtrain", "torch", "transformers"))
    header = ["order", "rows a step", "threads", "ms a step", "of which in next()", "share", "step without / with it"]
    print_table(header, table, left=3)


def forget(folder: Path) -> None:
    """Drop the shards from the page cache, so that a row is read from the disk once."""
    gc.collect()  # pages that a loader still maps would stay
    for path in shard_paths(folder):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def train_times(batches: Iterator[Batch], steps: int, step: Callable[[Batch], None]) -> tuple[float, float]:
    """Seconds of a training step, and of next() within it: means over `steps` steps."""
    waited = 0.0
    began = time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        step(batch)
    return (time.perf_counter() - began) / steps, waited / steps


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__)
    # Memory first, while the process holds nothing of the peers.
    names = ("memory", "first", "wait", "divide", "train", "speed")
    parser.add_argument("--parts", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with work_folder(arguments.work) as work:
        folder = make_data(work)
        parts: dict[str, Callable[[], None]] = {
            "memory": lambda: print_memory(folder),
            "first": lambda: print_first(folder, work),
            "wait": lambda: print_wait(folder),
            "divide": lambda: print_divide(work, arguments.rounds),
            "train": lambda: print_train(folder, arguments.rounds),
            "speed": lambda: print_speed(folder, work, arguments.rounds),
        }
        for name in names:
            if name in arguments.parts:
                parts[name]()


if __name__ == "__main__":
    main()
