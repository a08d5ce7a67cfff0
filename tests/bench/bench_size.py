"""Gigabytes of text, end to end: memory of the whole process tree over time, under `run.memory`.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_size.py [--gigabytes 10] [--memory 1536MiB] [--work DIR]

Made-up words, written in files of a quarter of a gigabyte, packed with two workers into Parquet, with several windows
and duplicates dropped. Memory is looked at some ten times a second and printed in twenty stretches of the run; the
largest sample is compared with `run.memory`. Needs about ten times the text on the disk, which is checked before.
"""

import argparse
import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tests.bench.bench_memory import held, tree
    from tests.bench.corpus import (
        TOKENIZER,
        make_parser,
        packtrain_run,
        print_header,
        print_table,
        read_manifest,
        read_timings,
        realdata,
        work_folder,
    )
else:
    from bench_memory import held, tree
    from corpus import *  # noqa: F403  # the same names: a script finds its neighbour by its own folder

FILE_BYTES = 1 << 28
ROOM = 10.0
"""Bytes on the disk for a byte of text: the text, its ids, and shards as `packtrain run` reckons them before it begins;
Parquet takes less."""
STRETCHES = 20
MEBI = 1 << 20


def write_text(path: Path, size: int, seed: int, row_words: int = 300) -> int:
    """Write JSONL of about so many bytes, rows of lognormal length; returns how many rows."""
    random = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwygpb"))
    vocabulary = ["".join(random.choice(letters, n)) for n in random.integers(2, 9, 20_000)]
    rank = np.minimum(random.zipf(1.3, 4_000_000) - 1, len(vocabulary) - 1)
    rows = written = 0
    with path.open("w", encoding="ascii") as file:
        while written < size:
            lengths = random.lognormal(np.log(row_words) - 0.5, 1.0, 2000).astype(int) + 1
            first = int(random.integers(0, len(rank) // 2))
            for length in lengths.tolist():
                words = [vocabulary[index] for index in rank[first : first + length].tolist()]
                written += file.write(json.dumps({"text": f"{rows} {' '.join(words)}"}) + "\n")
                first = (first + length) % (len(rank) // 2)
                rows += 1
                if written >= size:
                    break
    return rows


@dataclass
class Looks:
    """Memory of a process tree, over time, in bytes."""

    driver: list[int] = field(default_factory=list)
    all: list[int] = field(default_factory=list)
    when: list[float] = field(default_factory=list)

    def __call__(self, root: int) -> None:
        """Look once, and sleep."""
        sizes = {process: held(process)[0] for process in tree(root)}
        self.driver.append(sizes.get(root, 0))
        self.all.append(sum(sizes.values()))
        self.when.append(time.perf_counter())
        time.sleep(0.1)


def configure(home: Path, paths: list[str], **more: object) -> Path:
    """A configuration of texts, written into a new folder."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    data = {
        "out": str(home / "out"),
        "cache": str(home / "cache"),
        "tokenizer": {"path": str(realdata() / TOKENIZER)},
        "sources": [{"name": "texts", "format": "text", "path": paths}],
        "truncate": {"max_length": 4096},
        **more,
    }
    config = home / "config.yaml"
    config.write_text(json.dumps(data), encoding="utf-8")  # JSON is YAML
    return config


def text(work: Path, options: argparse.Namespace) -> None:
    """Gigabytes, end to end."""
    size = int(options.gigabytes * 1e9)
    if shutil.disk_usage(work).free < ROOM * size:
        raise SystemExit(f"{work} needs {ROOM * size / 1e9:.0f} GB of room; name another with --work, or fewer")
    source = work / "texts"
    source.mkdir(exist_ok=True)
    rows = 0
    for number, begin in enumerate(range(0, size, FILE_BYTES)):
        rows += write_text(source / f"{number:05d}.jsonl", min(FILE_BYTES, size - begin), number)
    config = configure(
        work / "size",
        [str(source)],
        pack={"strategy": "bfd_split", "window_tokens": max(1_000_000, size // 40)},
        output={"format": "parquet"},
        duplicates="drop",
        run={"memory": options.memory},
    )
    looks = Looks()
    cost = packtrain_run(config, watch=looks)
    out = config.parent / "out"
    manifest = read_manifest(out)
    split = manifest.splits["train"]
    print_header(
        f"{options.gigabytes} GB of text, two workers, run.memory {options.memory}", ("packtrain", "fastokens")
    )
    start, end = looks.when[0], looks.when[-1]
    table = []
    for stretch in range(STRETCHES):
        low, high = (start + (end - start) * share / STRETCHES for share in (stretch, stretch + 1))
        here = [i for i, at in enumerate(looks.when) if low <= at <= high]
        if here:
            peaks = (max(series[i] for i in here) / MEBI for series in (looks.driver, looks.all))
            table.append([f"{low - start:,.0f}", *(f"{peak:,.0f}" for peak in peaks)])
    print_table(["from second", "driver MiB", "tree MiB"], table, left=0)
    limit = float(options.memory.removesuffix("MiB"))
    most = max(looks.all) / MEBI
    stages = ", ".join(f"{name} {value:.0f}" for name, value in read_timings(out).items())
    print_table(
        ["rows", "M tokens", "windows", "fill", "wall s", "MB/s", "peak MiB", f"<= {limit:,.0f}"],
        [
            [
                f"{rows:,}",
                f"{split.tokens / 1e6:,.0f}",
                f"{len(split.windows)}",
                f"{split.tokens / split.rows / 4096:.3%}",
                f"{cost.wall:,.0f}",
                f"{size / 1e6 / cost.wall:.1f}",
                f"{most:,.0f}",
                "yes" if most <= limit else "NO",
            ]
        ],
        left=0,
    )
    print(f"Stages, s: {stages}")
    shutil.rmtree(config.parent)
    shutil.rmtree(source)


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--memory", default="1536MiB", help="run.memory, in MiB")
    options = parser.parse_args()
    with work_folder(options.work) as work:
        text(work, options)


if __name__ == "__main__":
    main()
