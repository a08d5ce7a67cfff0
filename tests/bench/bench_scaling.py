"""What more workers, another executor, a kill and many files cost, each beside the plain run it is compared with.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_scaling.py [workers] [ray] [shards] [resume] [files]
        [--work DIR] [--copies 11] [--runs 3] [--files 100000]

Without a name, all of them. Prints Markdown tables. Everything is `packtrain run` as a person types it, with an empty
cache and an empty output, counted from its start to its exit.

- workers: one worker and two, in turns; of the whole command, and of what workers do: encoding, planning and packing.
- ray: two local workers, and two on a Ray cluster of this machine, in turns. The cluster is started before.
- shards: two local workers, and two `--shard` processes of one worker each at once, in turns.
- resume: an undisturbed run, and the rest of one whose whole process group was killed when 90 % of its wall time had
  passed, in turns; both must make the same manifest.
- files: `--dry-run` on so many small files, the first time and again; and a run of a fifth of them, of the same rows in
  one file, and of the small files and one more.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.corpus import (
        Corpus,
        base_files,
        build,
        load,
        make_parser,
        packtrain_run,
        print_header,
        print_table,
        read_manifest,
        read_timings,
        spread,
        work_folder,
    )
else:
    from corpus import *  # noqa: F403  # the same names: a script finds its neighbour by its own folder

PACKAGES = ("packtrain", "fastokens", "pyarrow", "numpy")
PROGRAM = Path(sys.executable).with_name("packtrain")
KILL_AT = 0.9
LINES_A_FILE = 2


def run(corpus: Corpus, home: Path, workers: int = 2) -> float:
    """Seconds of a run from nothing."""
    return packtrain_run(corpus.config(home), workers=workers).wall


def compare(rounds: int, **kinds: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each kind, in turns."""
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds):
        for name, measure in kinds.items():
            found[name].append(measure())
            print(f"round {number + 1}: {name} {found[name][-1]:.1f} s; {load()}", file=sys.stderr, flush=True)
    return found


def ratios(one: list[float], other: list[float]) -> str:
    """How many times as long `one` takes, round by round."""
    return spread([a / b for a, b in zip(one, other, strict=True)])


def bench_workers(corpus: Corpus, home: Path, rounds: int) -> None:
    """One worker and two."""
    work: dict[int, list[float]] = {1: [], 2: []}

    def measure(workers: int) -> float:
        seconds = run(corpus, home, workers)
        stages = read_timings(home / "out")
        work[workers].append(stages["encode"] + stages["plan and pack"])
        return seconds

    found = compare(rounds, one=lambda: measure(1), two=lambda: measure(2))
    print_header(f"One worker and two, {corpus.text_bytes / 1e6:,.0f} MB of text", PACKAGES)
    rows = [
        ["one", spread(found["one"], 1), spread(work[1], 1)],
        ["two", spread(found["two"], 1), spread(work[2], 1)],
        ["times as fast", ratios(found["one"], found["two"]), ratios(work[1], work[2])],
    ]
    print_table(["workers", "seconds", "of them, encode and pack"], rows)
    print("Target: 1.75 of the whole command.\n")


@contextmanager
def ray_cluster() -> Iterator[str]:
    """The address of a cluster of two cores on this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 128 << 20})
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def timed(corpus: Corpus, home: Path, *more: str) -> float:
    """Seconds of a run from nothing. Its processes are not counted, because the cluster's are this process's, too."""
    config = corpus.config(home)
    began = time.perf_counter()
    subprocess.run([PROGRAM, "run", config, "--workers", "2", *more], check=True, capture_output=True)
    return time.perf_counter() - began


def bench_ray(corpus: Corpus, home: Path, rounds: int) -> None:
    """Local and Ray."""
    with ray_cluster() as address:
        found = compare(
            rounds,
            local=lambda: timed(corpus, home),
            ray=lambda: timed(corpus, home, "--executor", "ray", "--address", address),
        )
    print_header(f"Ray, {corpus.text_bytes / 1e6:,.0f} MB of text", (*PACKAGES, "ray"))
    print_table(["executor", "seconds"], [[name, spread(seconds, 1)] for name, seconds in found.items()])
    print(f"Ray takes {ratios(found['ray'], found['local'])} times as long as local workers.\n")


def run_shards(corpus: Corpus, home: Path, count: int) -> float:
    """Seconds until all of so many shards, started at once, have ended."""
    config = corpus.config(home)
    began = time.perf_counter()
    shards = [
        subprocess.Popen(
            [PROGRAM, "run", config, "--workers", "1", "--shard", f"{index}/{count}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for index in range(count)
    ]
    codes = [shard.wait() for shard in shards]
    if any(codes):
        raise SystemExit(f"shards ended with {codes}")
    return time.perf_counter() - began


def bench_shards(corpus: Corpus, home: Path, rounds: int) -> None:
    """Two workers of one run, and two shards of one worker each."""
    found = compare(rounds, workers=lambda: run(corpus, home), shards=lambda: run_shards(corpus, home, 2))
    print_header(f"Two shards at once, {corpus.text_bytes / 1e6:,.0f} MB of text", PACKAGES)
    print_table(["", "seconds"], [[f"two {name}", spread(seconds, 1)] for name, seconds in found.items()])
    print(f"Two shards take {ratios(found['shards'], found['workers'])} times as long as two workers of one run.\n")


def bench_resume(corpus: Corpus, home: Path, rounds: int) -> None:
    """A run, and the rest of a killed one."""
    whole: list[float] = []
    rest: list[float] = []
    laid: list[float] = []
    for number in range(rounds):
        whole.append(run(corpus, home))
        manifest = (home / "out" / "manifest.json").read_bytes()
        config = corpus.config(home)
        process = subprocess.Popen(
            [PROGRAM, "run", config, "--workers", "2"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(KILL_AT * whole[-1])
        if process.poll() is not None:
            raise SystemExit("the run was faster than the one before it; run the benchmark on a quiet machine")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if (home / "out" / "manifest.json").exists():
            print("killed after its manifest, in its report: the rest is only a look", file=sys.stderr, flush=True)
        laid.append(len(list((home / "out" / "_run" / "shards").glob("*.json"))))
        rest.append(packtrain_run(config).wall)
        if (home / "out" / "manifest.json").read_bytes() != manifest:
            raise SystemExit("the resumed run made another dataset")
        print(f"round {number + 1}: {whole[-1]:.1f} s, rest {rest[-1]:.1f} s; {load()}", file=sys.stderr, flush=True)
    print_header(f"After a kill at {KILL_AT:.0%}, {corpus.text_bytes / 1e6:,.0f} MB of text", PACKAGES)
    share = [a / b for a, b in zip(rest, whole, strict=True)]
    print_table(
        ["whole run, s", "shards at the kill", "the rest, s", "share", "target"],
        [[spread(whole, 1), spread(laid, 0), spread(rest, 1), spread(share, 3), "0.12"]],
        left=0,
    )


def bench_files(work: Path, home: Path, files: int) -> None:
    """A dry run over many files, and a run over a fifth of them."""
    folder = work / "files"
    shutil.rmtree(folder, ignore_errors=True)
    for number in range(files):
        place = folder / f"{number // 1000:03d}" / f"{number:06d}.jsonl"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(_two_rows(number))
    corpus = Corpus(folder, 1, 0, 0, 0)
    bench_runs_of_files(corpus, home, files // 5)
    source = {"name": "small", "format": "messages", "path": [str(folder / "*" / "*.jsonl")]}
    config = corpus.config(home, sources=[source])
    first = packtrain_run(config, "--dry-run").wall
    again = packtrain_run(config, "--dry-run").wall
    print_header(f"--dry-run on {files:,} files of {LINES_A_FILE} rows", PACKAGES)
    print_table(["", "seconds", "ms a file"], [
        ["the first time", f"{first:.1f}", f"{first / files * 1e3:.2f}"],
        ["again", f"{again:.1f}", f"{again / files * 1e3:.2f}"],
    ])  # fmt: skip
    shutil.rmtree(folder)


def _two_rows(number: int) -> bytes:
    """Rows of GSM8K, with a number in each, so that no two files are equal."""
    lines = base_files()[2].lines
    chosen = [lines[(number * LINES_A_FILE + line) % len(lines)] for line in range(LINES_A_FILE)]
    return b"".join(b'{"n": %d, ' % number + line.lstrip()[1:] for line in chosen)


def bench_runs_of_files(corpus: Corpus, home: Path, files: int) -> None:
    """A run of many files, of the same rows in one file, and of the files and one more with the same cache."""
    small = [str(path) for path in sorted(corpus.folder.glob("*/*.jsonl"))[:files]]
    whole = corpus.folder / "whole.jsonl"
    whole.write_bytes(b"".join(_two_rows(number) for number in range(files)))
    seconds = {}
    for name, paths in (("one file", [str(whole)]), ("small files", small)):
        config = corpus.config(home, sources=[{"name": "small", "format": "messages", "path": paths}])
        seconds[name] = packtrain_run(config, "--no-report")
    more = corpus.folder / "000" / "000000-more.jsonl"
    more.write_bytes(_two_rows(files))
    source = {"name": "small", "format": "messages", "path": [*small[:10], str(more), *small[10:]]}
    data = json.loads(config.read_text(encoding="utf-8")) | {"sources": [source], "out": str(home / "more")}
    config.write_text(json.dumps(data), encoding="utf-8")
    seconds["and one more file, with the cache"] = packtrain_run(config, "--no-report")
    more.unlink()
    whole.unlink()
    print_header(f"{files:,} files of {LINES_A_FILE} rows", PACKAGES)
    rows = [[name, f"{cost.wall:.1f}", f"{cost.cpu:.1f}", f"{cost.others:.1f}"] for name, cost in seconds.items()]
    print_table(["", "seconds", "CPU seconds", "others' cores"], rows)
    print("Target: at most 15 s.\n")


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__)
    names = ("workers", "ray", "shards", "resume", "files")
    parser.add_argument("what", nargs="*", choices=[*names, []], help="which; default all")
    parser.add_argument("--copies", type=int, default=11, help="of the corpus (18.3 MB of text)")
    parser.add_argument("--runs", type=int, default=3, help="rounds")
    parser.add_argument("--files", type=int, default=100_000)
    arguments = parser.parse_args()
    chosen = arguments.what or names
    with work_folder(arguments.work) as work:
        home = work / "scaling"
        os.environ["PACKTRAIN_CACHE"] = str(work / "user")  # what is known of the tokenizer after the first run
        if set(chosen) != {"files"}:
            corpus = build(work, arguments.copies)
            measures = {"workers": bench_workers, "ray": bench_ray, "shards": bench_shards, "resume": bench_resume}
            for name in names:
                if name in chosen and name in measures:
                    measures[name](corpus, home, arguments.runs)
                    print(f"manifest {read_manifest(home / 'out').hash[:16]}\n", flush=True)
        if "files" in chosen:
            bench_files(work, home, arguments.files)


if __name__ == "__main__":
    main()
