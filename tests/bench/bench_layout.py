"""How fast shards are laid out, beside plain copies of the same shards to the same disk.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_layout.py [--work DIR] [--copies 11] [--rounds 5]

Prints a Markdown table. Laying out is the pack stage of `packtrain run` with two workers, from encoded parts that
are in the cache, to an empty output: gather, mask, hash, write, fsync, read back. A copy reads a shard, which is in
the page cache, and writes it in pieces of 4 MiB with an fsync a file, by one process and by two. All three in turns.
"""

import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.corpus import (
        build,
        load,
        make_parser,
        median,
        packtrain_run,
        print_header,
        print_table,
        read_manifest,
        read_timings,
        work_folder,
    )
else:
    from corpus import *  # noqa: F403  # the same names: a script finds its neighbour by its own folder

PIECE = 4 << 20


def copy_files(files: Sequence[Path], target: Path) -> None:
    """Copy files into a folder, piece by piece, each durable at its end."""
    buffer = bytearray(PIECE)
    view = memoryview(buffer)
    for path in files:
        with path.open("rb", buffering=0) as source, (target / path.name).open("xb", buffering=0) as sink:
            while count := source.readinto(buffer):
                done = 0
                while done < count:
                    done += sink.write(view[done:count])
            os.fsync(sink.fileno())


def copy_seconds(files: Sequence[Path], target: Path, processes: int) -> float:
    """Seconds that so many processes take to copy the files; the copies are removed."""
    target.mkdir()
    os.sync()
    context = multiprocessing.get_context("fork")
    began = time.perf_counter()
    children = [context.Process(target=copy_files, args=(files[i::processes], target)) for i in range(processes)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    seconds = time.perf_counter() - began
    if any(child.exitcode for child in children) or len(list(target.iterdir())) < len(files):
        raise SystemExit(f"copying to {target} failed")
    shutil.rmtree(target)
    return seconds


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__)
    parser.add_argument("--copies", type=int, default=11, help="of the corpus, 18.3 MB of text each")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {"lay out, 2 workers": [], "copy, 1 process": [], "copy, 2 processes": []}
    layout, one, two = seconds.values()
    with work_folder(arguments.work) as work:
        corpus = build(work, arguments.copies)
        home = work / "layout"
        config = corpus.config(home)
        packtrain_run(config)  # fills the cache, and makes the shards that are copied
        manifest = read_manifest(home / "out")
        shards = [home / "out" / shard.name for split in manifest.splits.values() for shard in split.shards]
        size = sum(path.stat().st_size for path in shards)
        tokens = sum(split.tokens for split in manifest.splits.values())
        for number in range(arguments.rounds):
            packtrain_run(config, "--out", str(home / "again"))
            layout.append(read_timings(home / "again")["pack"])
            shutil.rmtree(home / "again")
            one.append(copy_seconds(shards, home / "copy", 1))
            two.append(copy_seconds(shards, home / "copy", 2))
            print(f"round {number + 1} of {arguments.rounds}; {load()}", file=sys.stderr, flush=True)
        shutil.rmtree(home)
        shutil.rmtree(corpus.folder)
    print_header(f"Lay-out bandwidth, {arguments.rounds} rounds", ("packtrain", "pyarrow", "numpy"))
    print(f"{len(shards)} shards, {size / 1e6:,.0f} MB, {tokens / 1e6:.1f} M tokens.\n")
    rows = []
    for name, taken in seconds.items():
        rates = [size / 1e6 / value for value in taken]
        ratios = [f"{median([b / a for a, b in zip(taken, other, strict=True)]):.2f}" for other in (one, two)]
        ranged = f"{median(rates):.0f} ({min(rates):.0f}–{max(rates):.0f})"
        rows.append([name, f"{median(taken):.2f}", ranged, f"{tokens / 1e6 / median(taken):.1f}", *ratios])
    header = ["what", "s", "MB/s", "M tokens/s", "of 1 process's copy", "of 2 processes' copy"]
    print_table(header, rows)
    for count, copies in (("one plain copy", one), ("two copies at once", two)):
        share = median([b / a for a, b in zip(layout, copies, strict=True)])
        print(f"Of the bandwidth of {count}: {share:.2f} (target: at least 0.5).")


if __name__ == "__main__":
    main()
