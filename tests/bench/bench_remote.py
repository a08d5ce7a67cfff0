"""How long a step waits for its batch when the shards lie in an object store, on good days and on bad ones.

    python tests/bench/bench_remote.py [--work DIR] [--rounds 3] [--pace 0.02] [--latency 0.05] [--rate 0.05]

Prints Markdown tables. The store is another process on loopback (`loopback.py`) that waits before every answer and
refuses a share of the requests with 503. Every pass over the data begins with an empty cache.

batches: one epoch of a packed dataset, rows as they lie, by a consumer that sleeps for `--pace` seconds after each
batch, as a GPU would compute. What it spends in next() is a wait. The first batch is apart: nothing can hide it. The
local folder, the store without latency, with it, and with it and 503s, in turns; quantiles over all rounds.

files: one file of 64 MiB from the store into the cache, hashed and synced, beside fsspec's own `get_file`, which
does neither, in turns. Without 503s, which `get_file` does not survive.
"""

import hashlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.bench.corpus import load, make_parser, median, print_header, print_table, spread, work_folder
else:
    from corpus import *  # noqa: F403  # the same names: a script finds its neighbours by its own folder

MAX_LENGTH = 2048
ROWS_A_STEP = 8
TOKENS = 12_000_000
SHARD_BYTES = 1 << 20
"""Small, so that there are many requests."""
FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class Day:
    """How the store behaves."""

    name: str
    latency: float = 0.0
    rate: float = 0.0
    local: bool = False


@dataclass
class Waits:
    """Of all rounds."""

    first: list[float] = field(default_factory=list)
    """Seconds from making the loader to its first batch."""
    later: list[float] = field(default_factory=list)
    """Seconds in next() for each batch after the first."""
    answers: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)


def make_data(work: Path) -> Path:
    """A packed dataset of random words, in shards of some 1 MiB; made once per work folder."""
    import packtrain
    from tokenizers import Tokenizer

    tokenizer = Path(str(files("packtrain.pipeline.demo") / "tokenizer"))
    rows = work / "remote-rows.jsonl"
    if not rows.exists():
        vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab()
        words = sorted(word for word in vocabulary if word.isascii() and word.isalpha())
        chance = random.Random(0)
        left = TOKENS
        with rows.with_suffix(".part").open("w", encoding="utf-8") as file:
            while left > 0:
                size = min(max(16, int(chance.lognormvariate(6, 1))), 1900)
                # A word and the space before it are some two tokens.
                file.write(json.dumps({"text": " ".join(chance.choices(words, k=size // 2))}) + "\n")
                left -= size
        rows.with_suffix(".part").rename(rows)
    packtrain.run(
        {
            "out": str(work / "remote-data"),
            "cache": str(work / "remote-cache"),
            "tokenizer": {"path": str(tokenizer)},
            "sources": [{"name": "words", "format": "text", "path": str(rows)}],
            "truncate": {"max_length": MAX_LENGTH},
            "output": {"shard_bytes": SHARD_BYTES},
        }
    )
    return work / "remote-data"


@contextmanager
def served(folder: Path, day: Day, seed: int, counts: list[int]) -> Iterator[str]:
    """The address of a store in another process. When it ends, requests and refusals are added to `counts`."""
    command = [sys.executable, str(Path(__file__).with_name("loopback.py")), str(folder)]
    command += ["--latency", str(day.latency), "--rate", str(day.rate), "--seed", str(seed)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield process.stdout.readline().strip()
    finally:
        counts.extend(map(int, process.communicate()[0].split()))


def one_pass(where: str, cache: Path, pace: float, waits: Waits) -> int:
    """Read one epoch; returns the tokens received."""
    from packtrain.training import PackedLoader

    shutil.rmtree(cache, ignore_errors=True)
    began = time.perf_counter()
    # Balance looks at a sample of rows first, which of data as small as these would fetch most before the first batch.
    loader = PackedLoader(
        where, rows_per_step=ROWS_A_STEP, balance=None, cache=cache, cache_bytes=1 << 30, rank=0, world_size=1
    )
    batches = iter(loader)
    tokens = next(batches)["input_ids"].shape[1]
    waits.first.append(time.perf_counter() - began)
    for _ in range(len(loader)):
        time.sleep(pace)
        began = time.perf_counter()
        tokens += next(batches)["input_ids"].shape[1]
        waits.later.append(time.perf_counter() - began)
    return int(tokens)


def print_batches(folder: Path, work: Path, days: list[Day], rounds: int, pace: float) -> None:
    """Waits on each kind of day."""
    found = {day.name: Waits() for day in days}
    expected: set[int] = set()
    for seed in range(rounds):
        for day in days:
            waits = found[day.name]
            if day.local:
                expected.add(one_pass(str(folder), work / "empty", pace, waits))
                continue
            counts: list[int] = []
            with served(folder, day, seed, counts) as address:
                expected.add(one_pass(address, work / "shard-cache", pace, waits))
            waits.answers.append(counts[0])
            waits.refused.append(counts[1])
        print(f"round {seed + 1}; {load()}", file=sys.stderr, flush=True)
    if len(expected) != 1:
        raise SystemExit(f"the passes gave different numbers of tokens: {sorted(expected)}")
    shards = json.loads((folder / "manifest.json").read_bytes())["splits"]["train"]["shards"]
    size = sum(shard["bytes"] for shard in shards)
    steps = len(found[days[0].name].later) // rounds + 1
    tokens = expected.pop()
    print_header("Waits for a batch, from an empty cache", ("packtrain", "torch", "fsspec", "aiohttp"))
    print(
        f"{steps} steps of {ROWS_A_STEP} × {MAX_LENGTH:,} tokens, {pace * 1000:.0f} ms of computing after each "
        f"({tokens / steps / pace:,.0f} tokens/s at most), {len(shards)} shards of {size / len(shards) / 1e6:.1f} MB; "
        f"{rounds} rounds.\n"
    )
    rows = []
    for day in days:
        waits = found[day.name]
        later = np.array(waits.later) * 1000
        middle, late = np.quantile(later, [0.5, 0.99])
        requests = f"{sum(waits.answers) / rounds:.0f}, {sum(waits.refused) / rounds:.0f}" if waits.answers else "-"
        share = later.sum() / (later.sum() + len(later) * pace * 1000)
        cells = [f"{median(waits.first) * 1000:,.0f}", f"{middle:.2f}", f"{late:.2f}", f"{later.max():,.0f}"]
        rows.append([day.name, *cells, f"{share:.2%}", requests])
    names = ["shards in", "first batch, ms", "median, ms", "99th percentile, ms", "longest, ms", "of the time"]
    print_table([*names, "requests, refused"], rows)


def print_files(work: Path, days: list[Day], rounds: int) -> None:
    """One file into the cache, and by fsspec's own means."""
    from packtrain.training.files import open_files

    folder = work / "remote-file"
    folder.mkdir(exist_ok=True)
    data = hashlib.shake_128(b"file").digest(FILE_BYTES)
    (folder / "file").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    rows = []
    for day in days:
        seconds: dict[str, list[float]] = {"hold": [], "get_file": []}
        with served(folder, day, 0, []) as address:
            plain: Any = import_module("fsspec").filesystem("http", skip_instance_cache=True)
            for _ in range(rounds):
                shutil.rmtree(work / "shard-cache", ignore_errors=True)
                began = time.perf_counter()
                if open_files(address, cache=work / "shard-cache").map("file", FILE_BYTES, digest):
                    seconds["hold"].append(time.perf_counter() - began)
                began = time.perf_counter()
                plain.get_file(f"{address}/file", str(work / "copy"))
                seconds["get_file"].append(time.perf_counter() - began)
        rates = {name: [FILE_BYTES / 1e6 / each for each in taken] for name, taken in seconds.items()}
        rows.append([day.name, spread(rates["hold"], 0), spread(rates["get_file"], 0)])
    print_header(f"A file of {FILE_BYTES >> 20} MiB from the store", ("packtrain", "fsspec", "aiohttp"))
    print_table(["shards in", "hold, MB/s", "get_file, MB/s"], rows)


def main() -> None:
    """See the module."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.02)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--rate", type=float, default=0.05)
    options = parser.parse_args()
    days = [
        Day("the local folder", local=True),
        Day("a store"),
        Day(f"a store, {options.latency * 1000:.0f} ms", options.latency),
        Day(f"a store, {options.latency * 1000:.0f} ms, {options.rate:.0%} 503", options.latency, options.rate),
    ]
    with work_folder(options.work) as work:
        print_batches(make_data(work), work, days, options.rounds, options.pace)
        print()
        print_files(work, [day for day in days if not day.local and not day.rate], options.rounds)


if __name__ == "__main__":
    main()
