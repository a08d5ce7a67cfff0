"""Peak memory of `packtrain run` as the input grows 16-fold.

    PACKTRAIN_REALDATA=folder python -m tests.bench.bench_memory [--work DIR] [--copies 4] [--sizes 1 4 16]

Prints a Markdown table. Memory is what processes hold for themselves: the sum, over the command's whole process
tree, of `Pss_Anon` and `Pss_Shmem` in /proc/PID/smaps_rollup. Files that are mapped (the encoded parts, the plan)
are listed separately as "mapped": those pages are the page cache's, and the kernel takes them back whenever it wants
to. Each process is sampled some twenty times a second. "All" is the largest sum of one moment, so it may be less than
its parts' own peaks together.
"""

import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.corpus import (
    build,
    load,
    make_parser,
    median,
    packtrain_run,
    print_header,
    print_table,
    read_manifest,
    work_folder,
)

INTERVAL = 0.05
MEBI = 1 << 20
HELPERS = (b"forkserver", b"resource_tracker")
"""Children of the driver that run no task: multiprocessing's own."""
LIMIT_MEBIBYTES, LIMIT_RATIO = 1536, 1.10


@dataclass
class Watch:
    """Looks at a process tree again and again, and keeps the peaks, in bytes."""

    all: int = 0
    driver: int = 0
    workers: int = 0
    """Sum over all workers."""
    helpers: int = 0
    mapped: int = 0
    moments: list[float] = field(default_factory=list)
    helper_ids: set[int] = field(default_factory=set)

    def __call__(self, root: int) -> None:
        """Look once, then sleep until it is time to look again."""
        began = time.perf_counter()
        self.moments.append(began)
        sums = {"driver": 0, "workers": 0, "helpers": 0}
        mapped = 0
        for process, parent in tree(root).items():
            own, files = held(process)
            sums[self._kind(process, parent, root)] += own
            mapped += files
        self.all = max(self.all, sum(sums.values()))
        self.driver = max(self.driver, sums["driver"])
        self.workers = max(self.workers, sums["workers"])
        self.helpers = max(self.helpers, sums["helpers"])
        self.mapped = max(self.mapped, mapped)
        time.sleep(max(0.001, INTERVAL - (time.perf_counter() - began)))

    def _kind(self, process: int, parent: int, root: int) -> str:
        if process == root:
            return "driver"
        # What a fork server forks has its command line, but not its parent.
        if process in self.helper_ids:
            return "helpers"
        if parent == root:
            try:
                line = Path(f"/proc/{process}/cmdline").read_bytes()
            except OSError:
                line = b""
            if any(helper in line for helper in HELPERS):
                self.helper_ids.add(process)
                return "helpers"
        return "workers"

    @property
    def interval(self) -> float:
        """Median seconds between two looks."""
        return median([later - earlier for earlier, later in zip(self.moments, self.moments[1:], strict=False)])


def tree(root: int) -> dict[int, int]:
    """The processes below a process, and itself, each with its parent."""
    parents = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    found = {root: parents.get(root, 0)}
    while more := {process: parent for process, parent in parents.items() if parent in found and process not in found}:
        found |= more
    return found


def held(process: int) -> tuple[int, int]:
    """Bytes that a process holds for itself, and bytes of files that it has mapped."""
    own = files = 0
    try:
        with Path(f"/proc/{process}/smaps_rollup").open(encoding="ascii") as file:
            for line in file:
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    own += int(line.split()[1]) * 1024
                elif line.startswith("Pss_File:"):
                    files += int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass  # it has just ended
    return own, files


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__)
    parser.add_argument("--copies", type=int, default=4, help="of the corpus (18.3 MB of text) that are 1x")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16], help="times that")
    arguments = parser.parse_args()
    rows = []
    first = 0
    with work_folder(arguments.work) as work:
        for size in arguments.sizes:
            corpus = build(work, arguments.copies * size, arguments.lines)
            megabytes = corpus.text_bytes / 1e6
            room = 8e6 * megabytes
            if shutil.disk_usage(work).free < room:
                raise SystemExit(f"{work} needs {room / 1e9:.0f} GB of room for {size}x; leave it out with --sizes")
            home = work / "memory"
            config = corpus.config(home)
            watch = Watch()
            cost = packtrain_run(config, watch=watch)
            total = read_manifest(home / "out")["ledger"]
            shutil.rmtree(home)
            shutil.rmtree(corpus.folder)
            first = first or watch.all
            peaks = (watch.all, watch.driver, watch.workers, watch.helpers, watch.mapped)
            kept = watch.all <= LIMIT_RATIO * first and watch.all < LIMIT_MEBIBYTES * MEBI
            rows.append(
                [
                    f"{size}x",
                    f"{megabytes:,.0f}",
                    f"{sum(source['tokens_encoded'] for source in total.values()) / 1e6:.1f}",
                    f"{sum(source['examples_made'] for source in total.values()):,}",
                    *(f"{peak / MEBI:.0f}" for peak in peaks),
                    f"{watch.all / first:.2f}",
                    "yes" if kept else "NO",
                    f"{cost.wall:.1f}",
                    f"{watch.interval * 1e3:.0f}",
                ]
            )
            print(f"{size}x done; {load()}", file=sys.stderr, flush=True)
        print_header("Peak memory, two workers", ("packtrain", "fastokens", "pyarrow", "numpy"))
        header = ["size", "text MB", "M tokens", "documents"]
        header += [f"{name} MiB" for name in ("all", "driver", "workers", "helpers", "mapped")]
        limits = f"<= {LIMIT_RATIO:.2f} and < {LIMIT_MEBIBYTES / 1024:.1f} GiB"
        print_table([*header, "all / 1x", limits, "wall s", "ms a look"], rows)


if __name__ == "__main__":
    main()
