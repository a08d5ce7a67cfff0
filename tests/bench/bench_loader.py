"""Compares the loader with other loaders and with the speed of memory, and with what a trainer waits for.

    python tests/bench/bench_loader.py [--work DIR] [--parts memory wait speed] [--rounds 5]

Prints Markdown tables. To compare with peers: `pip install mosaicml-streaming torchdata`; one that cannot be
imported is named with the reason. The data are made here: texts of lognormal length, packed by `packtrain.run` into
rows of 4,096 tokens, some 300 MB of shards in the default size, all in the page cache. One process reads them.

speed: rows to flattened int64 batches, see `loader_peers`. Contenders run in turns, for a moment each, in every
round, and go on where they stopped, so that shards stay mapped; a cell is the median of the rounds, a ratio the median
of the rounds' ratios. The first batch of each turn is not counted. First of all each delivers one epoch, whose tokens,
ids, labels, positions and documents must have the sums that they have in the shards. The limit is a bare copy: rows to
int64 arrays, no tensors, no order, no documents. Fresh arrays of a megabyte come from the kernel, page by page, every
time; the same ones again show what that costs.

memory: what the process holds for itself (RssAnon) after each of 20 epochs.

wait: the share of a step that its consumer spends in next(), when it sleeps for the rest as long as a GPU would
compute: 60,000 tokens/s, one GPU of the H200 class with a model of 1B parameters, and 400,000, as eight would ask.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
ROWS_A_STEP = (1, 8, 32)
PEERS = ("mosaicml-streaming", "datasets", "trl", "torchdata")
PEER_FACTOR, LIMIT_SHARE = 10, 0.5
WAIT_LIMIT = 0.01
EPOCHS = 20
RATES = (60_000, 400_000)


def make_data(work: Path, tokens: int) -> Path:
    """A packed dataset of known sizes and random words; made once per work folder."""
    import packtrain
    from tokenizers import Tokenizer

    tokenizer = Path(str(files("packtrain.pipeline.demo") / "tokenizer"))
    rows = work / "loader-rows.jsonl"
    if not rows.exists():
        vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab()
        words = np.array(sorted(word for word in vocabulary if word.isascii() and word.isalpha()))
        random_ = np.random.default_rng(0)
        left = tokens
        with rows.with_suffix(".part").open("w", encoding="utf-8") as file:
            while left > 0:
                size = int(np.clip(random_.lognormal(6.2, 1.1), 16, 3900))
                # A word and the space before it are some two tokens.
                file.write(json.dumps({"text": " ".join(random_.choice(words, size // 2))}) + "\n")
                left -= size
        rows.with_suffix(".part").rename(rows)
    config = {
        "out": str(work / "loader-data"),
        "cache": str(work / "loader-cache"),
        "tokenizer": {"path": str(tokenizer)},
        "sources": [{"name": "words", "format": "text", "path": str(rows)}],
        "truncate": {"max_length": MAX_LENGTH},
        "run": {"report": False},
    }
    packtrain.run(config)
    return work / "loader-data"


def shard_paths(folder: Path) -> list[Path]:
    """The shards of the train split."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    return [folder / shard["name"] for shard in manifest["splits"]["train"]["shards"]]


# Speed.


def endless(contender: Contender, rows: int) -> Iterator[Batch]:
    """Its batches, pass after pass."""
    return chain.from_iterable(contender.passes(rows) for _ in count())


def tokens_a_second(batches: Iterator[Batch], moment: float) -> float:
    """Measured over one turn of `moment` seconds, from the first batch's arrival on."""
    next(batches)
    tokens = taken = 0.0
    began = time.perf_counter()
    for batch in batches:
        tokens += batch["input_ids"].shape[1]
        if (taken := time.perf_counter() - began) > moment:
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


def print_speed(folder: Path, work: Path, rounds: int, moment: float) -> None:
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
                rates[name].append(tokens_a_second(batches, moment) / 1e6)
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


def print_wait(folder: Path, seconds: float) -> None:
    """The share of a step spent in next()."""
    from packtrain.training import PackedLoader

    table = []
    for order in ("sequential", "full"):
        for rate in RATES:
            for ahead in (2, 0):
                options: dict[str, Any] = {"order": order, "first_epoch_sequential": False, "prefetch": ahead}
                loader = PackedLoader(folder, rows_per_step=8, epochs=10_000, **options)
                waits, slept = wait_times(iter(loader), rate, seconds)
                share = sum(waits) / (sum(waits) + slept)
                row = [f"{order}, prefetch={ahead}", f"{rate:,}", f"{slept / len(waits) * 1e3:.0f}"]
                row += [f"{median(waits) * 1e3:.3f}", f"{max(waits) * 1e3:.3f}", f"{share:.3%}"]
                table.append([*row, "yes" if share < WAIT_LIMIT else "NO"])
    print_header("Waiting for a batch of 8 rows, warm page cache", ("packtrain", "torch", "numpy"))
    header = ["order", "tokens/s of the consumer", "ms it computes", "ms it waits", "longest, ms", "share"]
    print_table([*header, f"< {WAIT_LIMIT:.0%}"], table)


def wait_times(batches: Iterator[Batch], rate: int, seconds: float) -> tuple[list[float], float]:
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


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__)
    # Memory first, while the process holds nothing of the peers.
    names = ("memory", "wait", "speed")
    parser.add_argument("--parts", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=28_000_000, help="of the dataset")
    parser.add_argument("--moment", type=float, default=0.4, help="seconds of one contender's turn")
    arguments = parser.parse_args()
    with work_folder(arguments.work) as work:
        folder = make_data(work, arguments.tokens)
        parts: dict[str, Callable[[], None]] = {
            "memory": lambda: print_memory(folder),
            "wait": lambda: print_wait(folder, 10 * arguments.moment),
            "speed": lambda: print_speed(folder, work, arguments.rounds, arguments.moment),
        }
        for name in names:
            if name in arguments.parts:
                parts[name]()


if __name__ == "__main__":
    main()
