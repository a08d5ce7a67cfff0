"""Times what the report and `packtrain plan` compute.

    python tests/bench/bench_report.py [--rows 1000000] [--file-mib 400] [--skip-plan]

Prints Markdown tables.

1. The sweep: ten lengths and five strategies over lognormal lengths, each document with a prompt and an answer and
   some with more. For comparison: sorting the lengths once for each length, a lower limit, and the planner itself, once
   for each length and strategy that plans.
2. Reading length statistics from encoded parts, which this script makes without a tokenizer.
3. `packtrain plan --rows 20000` beside `packtrain plan` of all rows, on a file of chats (needs PACKTRAIN_REALDATA).
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from packtrain.pipeline.encode.parts import PartPlace
from packtrain.pipeline.inputs.blocks import FileLines
from packtrain.pipeline.report.collect.lengths.choice import choose
from packtrain.pipeline.report.collect.lengths.encoded import read_stats
from packtrain.pipeline.report.options import ReportOptions
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.open import StoredFile
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.rows import ENCODED, RUN, RunKind
from packtrain.stages.forecast.length_stats import LengthStats
from packtrain.stages.forecast.sweep import CANDIDATES, STRATEGIES, sweep
from packtrain.stages.pack.plan import plan_rows

REPEATS = 5
PART_ROWS = 5000
"""Documents of an encoded part: as many as some 4 MiB of text make."""


def stats_of(number: int, seed: int = 0) -> LengthStats:
    """Lognormal lengths to 200,000 and one to four trained runs in each."""
    chance = np.random.default_rng(seed)
    lengths = np.clip(np.exp(chance.standard_normal(number) * 1.1 + 6.5), 16, 200_000).astype(np.int32)
    turns = chance.integers(1, 5, number)
    owners = np.repeat(np.arange(number, dtype=np.int32), turns)
    place = np.arange(len(owners)) - np.repeat(np.cumsum(turns) - turns, turns)
    step = lengths[owners] // turns[owners]
    begins = (place * step + step // 2).astype(np.int32)
    return LengthStats(lengths, owners, begins, ((place + 1) * step).astype(np.int32))


def fresh(stats: LengthStats) -> LengthStats:
    """The same without what it has worked out before."""
    return LengthStats(stats.lengths, stats.owners, stats.begins, stats.ends)


def seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def bench_sweep(stats: LengthStats) -> None:
    count = len(stats.lengths)
    print(f"\n| {count:,} documents, {len(stats.owners):,} runs | s |\n|---|---:|")
    every = seconds(lambda: sweep(fresh(stats)))
    print(f"| sweep, {len(CANDIDATES)} lengths × {len(STRATEGIES)} strategies | {every:.2f} |")
    for strategy in STRATEGIES:
        taken = seconds(partial(lambda one: sweep(fresh(stats), strategies=[one]), strategy))
        print(f"| … {strategy} alone | {taken:.2f} |")
    options = ReportOptions()
    made = lambda: choose(fresh(stats), CONFIG, options, documents_in_all=count)  # noqa: E731
    print(f"| with histogram and advice | {seconds(made):.2f} |")

    def planned() -> None:
        for length in CANDIDATES:
            for strategy in ("bfd", "bfd_split", "wrapped"):
                plan_rows(stats.lengths, length, strategy)

    sorted_ = seconds(lambda: [np.sort(stats.lengths) for _ in CANDIDATES])
    print(f"| `np.sort` of the lengths, {len(CANDIDATES)} times | {sorted_:.2f} |")
    print(f"| the planner, {len(CANDIDATES)} lengths × 3 strategies | {seconds(planned, 1):.2f} |")


CONFIG = RunConfig.model_validate(
    {
        "out": "unused",
        "tokenizer": {"path": "unused"},
        "sources": [{"name": "s", "format": "messages", "path": "unused"}],
    }
)


LINES = json.dumps(
    {
        "model": {"type": "BPE", "vocab": {"a": 0, "Ċ": 1}, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel"},
        "added_tokens": [],
    }
)
"""As much of a tokenizer as says that token 1 ends a line."""


def put_parts(stats: LengthStats, folder: Path) -> tuple[list[PartPlace], list[int]]:
    """Encoded parts of these documents, written as a run writes them."""
    store, places, sizes = LocalStore(folder), list[PartPlace](), list[int]()
    starts = np.searchsorted(stats.owners, np.arange(len(stats.lengths) + 1))
    for first in range(0, len(stats.lengths), PART_ROWS):
        last = min(first + PART_ROWS, len(stats.lengths))
        batch = _batch(stats, first, last, starts)
        name = f"{first:012d}.arrow"
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_file(sink, ENCODED) as writer:
            writer.write_batch(batch)
        places.append(
            PartPlace(store, StoredFile(name, (folder / name).stat().st_size, "0" * 64), 0, FileLines(("a",), (0,)))
        )
        sizes.append(last - first)
    return places, sizes


def _batch(stats: LengthStats, first: int, last: int, starts: NDArray[np.int64]) -> pa.RecordBatch:
    lengths, count = stats.lengths[first:last], last - first
    here = slice(int(starts[first]), int(starts[last]))
    owners, begins, ends = stats.owners[here] - first, stats.begins[here], stats.ends[here]
    # A run before each trained one, and one behind the last of a document that does not end it.
    places = np.stack([begins, ends], axis=1).ravel()
    kinds = np.tile(np.array([RunKind.PROMPT, RunKind.ASSISTANT], dtype=np.int8), len(begins))
    number = 2 * np.bincount(owners, minlength=count)
    ends_at = np.cumsum(number)
    short = ends[np.cumsum(np.bincount(owners, minlength=count)) - 1] < lengths
    places = np.insert(places, ends_at[short], lengths[short]).astype(np.int32)
    kinds = np.insert(kinds, ends_at[short], RunKind.PROMPT)
    offsets = np.concatenate([[0], np.cumsum(number + short)]).astype(np.int32)
    runs = pa.StructArray.from_arrays(
        [
            pa.array(places),
            pa.array(kinds, pa.int8()),
            pa.array(np.zeros(len(places), np.int16)),
            pa.array(np.ones(len(places), np.bool_)),
        ],
        fields=list(RUN),
    )
    # A line ends at every fifteenth token.
    tokens = pa.array((np.arange(int(lengths.sum())) % 15 == 0).astype(np.int32))
    into = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    digests = np.random.default_rng(first).bytes(16 * count)
    columns = [
        pa.ListArray.from_arrays(pa.array(into), tokens, type=ENCODED.field("input_ids").type),
        pa.ListArray.from_arrays(pa.array(offsets), runs, type=ENCODED.field("runs").type),
        pa.array([""] * count, pa.string()),
        pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(digests)]),
        pa.array(np.arange(count, dtype=np.int32)),
        pa.array(np.full(count, -1, np.int32)),
        pa.array(np.zeros(count, np.int16)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ENCODED)


def bench_stats(stats: LengthStats) -> None:
    # Tokens are four bytes each: keep them short, because they are read only where documents are split.
    shrunk = np.maximum(stats.lengths // 20, 16).astype(np.int32)
    small = LengthStats(shrunk, stats.owners, np.minimum(stats.begins // 20, shrunk[stats.owners] - 1),
                  np.minimum(stats.ends // 20 + 1, shrunk[stats.owners]))  # fmt: skip
    print("\n| reading the stats | parts | s |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory() as temporary:
        places, sizes = put_parts(small, Path(temporary))
        split = CONFIG.truncate.model_copy(update={"overlong": "split"})
        for name, changes in (
            ("as it is", {}),
            ("without duplicates", {"duplicates": "drop"}),
            (f"split at {len(CANDIDATES)} lengths, {small.tokens / 1e6:,.0f} M tokens", {"truncate": split}),
        ):
            config = CONFIG.model_copy(
                update={"mask": CONFIG.mask.model_copy(update={"policy": "assistant"}), **changes}
            )
            options = ReportOptions(documents=None)
            read = partial(read_stats, config, places, sizes, LINES, Path(temporary), options)
            print(f"| {len(small.lengths):,} documents, {name} | {len(places):,} | {seconds(read, 3):.2f} |")


def bench_plan(mib: int) -> None:
    data = Path(os.environ["PACKTRAIN_REALDATA"])
    rows = (data / "chat/gsm8k_train.jsonl").read_text().splitlines()
    print(f"\n| `packtrain plan`, {mib:,} MiB of chats | s |\n|---|---:|")
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        chance = random.Random(0)
        with (home / "chats.jsonl").open("w") as file:
            while file.tell() < mib << 20:
                chance.shuffle(rows)
                file.writelines(f"{row}\n" for row in rows)
        (home / "mix.yaml").write_text(
            json.dumps({"out": "packed", "tokenizer": {"path": str(data / "tokenizers/qwen3")},
                        "sources": [{"name": "chats", "format": "messages", "path": "chats.jsonl"}]})
        )  # fmt: skip
        program = Path(sys.executable).parent / "packtrain"

        def planned(*more: Any) -> None:
            subprocess.run([program, "plan", "mix.yaml", *map(str, more)], cwd=home, check=True, capture_output=True)

        for name, more in (("--rows 20000", ("--rows", 20000)), ("--rows 20000, again", ("--rows", 20000)),
                           ("all rows", ()), ("all rows, again", ())):  # fmt: skip
            print(f"| {name} | {seconds(partial(planned, *more), 1):.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--file-mib", type=int, default=400)
    parser.add_argument("--skip-plan", action="store_true")
    asked = parser.parse_args()
    stats = stats_of(asked.rows)
    bench_sweep(stats)
    bench_stats(stats)
    if not asked.skip_plan:
        bench_plan(asked.file_mib)


if __name__ == "__main__":
    main()
