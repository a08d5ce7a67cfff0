"""What the benchmarks share: a corpus of real data, commands counted to their last process, and tables.

The corpus is APPS, LeetCode and GSM8K as they are, or so many copies of them. In further copies the lines are shuffled,
so that no block of the input repeats another, and all of it is read, rendered and encoded again.
"""

import argparse
import ctypes
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILES = {
    "apps": ("apps", "apps/train.jsonl"),
    "leetcode": ("apps", "apps/leetcode_apps_schema.jsonl"),
    "gsm8k": ("messages", "chat/gsm8k_train.jsonl"),
}
"""Format, and path below the real data, of each source."""
TOKENIZER = "tokenizers/qwen3"
MAX_LENGTH = 2048
SHARD_BYTES = 64 << 20
"""Small enough that both workers have shards to write."""
LINGER_SECONDS = 60.0
"""How long a command's last processes may outlive it before the benchmark gives up."""
PROGRAM = Path(sys.executable).with_name("packtrain")


def realdata() -> Path:
    """The folder of real data.

    Raises:
        SystemExit: PACKTRAIN_REALDATA names none.
    """
    folder = os.environ.get("PACKTRAIN_REALDATA")
    if not folder:
        raise SystemExit("set PACKTRAIN_REALDATA to the folder that holds apps/, chat/ and tokenizers/")
    return Path(folder).absolute()


@dataclass(frozen=True)
class Corpus:
    """So many copies of the files, written to a folder."""

    folder: Path
    copies: int
    lines: int | None
    """How many lines of each file are taken; None takes all."""

    @property
    def name(self) -> str:
        """How the tables call it."""
        return "first pass" if self.copies == 1 else f"repeated x{self.copies}"

    def config(self, home: Path) -> Path:
        """Write a configuration that keeps `out` and cache in `home`, a folder that is emptied first."""
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        data: dict[str, Any] = {
            "out": str(home / "out"),
            "cache": str(home / "cache"),
            "tokenizer": {"path": str(realdata() / TOKENIZER)},
            "sources": [
                {"name": name, "format": format, "path": str(self.folder / f"{name}.jsonl")}
                for name, (format, _) in FILES.items()
            ],
            "truncate": {"max_length": MAX_LENGTH},
            "output": {"shard_bytes": SHARD_BYTES},
        }
        path = home / "config.yaml"
        path.write_text(json.dumps(data), encoding="utf-8")  # JSON is YAML
        return path

    def prompts_and_completions(self) -> Path:
        """The examples as JSONL of prompt and completion, as TRL reads them."""
        whole = self.folder / "rows.jsonl"
        if not whole.exists():
            with whole.open("wb") as sink:
                for name, (format, _) in FILES.items():
                    part = self.folder / f"{name}-prepared.jsonl"
                    words = ["--format", format, "--input", str(self.folder / f"{name}.jsonl"), "-o", str(part)]
                    subprocess.run([PROGRAM, "prep", *words], check=True, capture_output=True)
                    for line in part.read_bytes().splitlines():
                        row = json.loads(line)
                        messages = row.get("messages") or row["prompt"] + row["completion"]
                        example = {"prompt": messages[:-1], "completion": messages[-1:]}
                        sink.write(json.dumps(example).encode() + b"\n")
        return whole

    @property
    def text_bytes(self) -> int:
        """Bytes of the messages of all examples, in UTF-8."""
        total = 0
        with self.prompts_and_completions().open("rb") as rows:
            for line in rows:
                row = json.loads(line)
                total += sum(len(message["content"].encode()) for message in row["prompt"] + row["completion"])
        return total


def build(work: Path, copies: int, lines: int | None = None) -> Corpus:
    """Write the corpus of so many copies below the work folder."""
    folder = work / f"corpus-{copies}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, path) in FILES.items():
        rows = (realdata() / path).read_bytes().splitlines(keepends=True)[:lines]
        with (folder / f"{name}.jsonl").open("wb") as sink:
            sink.writelines(rows)
            for copy in range(1, copies):
                random.Random(copy).shuffle(rows)
                sink.writelines(rows)
    return Corpus(folder, copies, lines)


# Commands, counted to the last process.


@dataclass(frozen=True)
class Cost:
    """What a command cost, from its start to its exit."""

    wall: float
    """Seconds."""
    cpu: float
    """Seconds of user and system time, of all its processes."""
    others: float
    """Cores that everything else on the machine used meanwhile: other programs, the kernel, the host."""


def adopt_orphans() -> None:
    """Have processes that outlive their parent become children of this one, to be waited for and counted.

    A fork server outlives the command that started it by a moment; without this, its time and that of its workers would
    not be counted.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform != "linux" or libc.prctl(36, 1, 0, 0, 0) != 0:  # PR_SET_CHILD_SUBREAPER
        raise SystemExit("only Linux can count the processes that a command leaves behind")


def run_counted(
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str] | None = None,
    watch: Callable[[int], None] | None = None,
) -> Cost:
    """Run a command and count its whole process tree. This process must have no other children meanwhile.

    Args:
        log: takes the command's output.
        environment: set on top of this process's own.
        watch: called with the command's process id again and again until it exits; it should sleep.

    Raises:
        SystemExit: the command failed.
    """
    adopt_orphans()
    os.sync()  # what an earlier command left to be written is not this one's to wait for
    with log.open("wb") as sink:
        busy = busy_seconds()
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        wall = cpu = 0.0
        while True:
            exited = process.returncode is not None
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG if exited or watch else 0)
            except ChildProcessError:
                break
            if pid == 0:
                if exited and time.perf_counter() - began - wall > LINGER_SECONDS:
                    raise SystemExit(f"{command[0]} left processes behind that do not end; see {log}")
                if exited or watch is None:
                    time.sleep(0.002)
                else:
                    watch(process.pid)
                continue
            cpu += usage.ru_utime + usage.ru_stime
            if pid == process.pid:
                wall = time.perf_counter() - began
                process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise SystemExit(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{tail}")
    return Cost(wall, cpu, max(0.0, (busy_seconds() - busy - cpu) / (time.perf_counter() - began)))


def busy_seconds() -> float:
    """CPU seconds that the machine has spent since it started, those that its host took from it included."""
    with Path("/proc/stat").open(encoding="ascii") as file:
        user, nice, system, _idle, _waiting, irq, softirq, stolen = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK")


def packtrain_run(config: Path, *more: str, workers: int = 2, watch: Callable[[int], None] | None = None) -> Cost:
    """`packtrain run` as a person types it."""
    arguments: list[str | Path] = [PROGRAM, "run", config, "--workers", str(workers), *more]
    return run_counted(arguments, config.with_name("log.txt"), watch=watch)


def read_manifest(out: Path) -> dict[str, Any]:
    """The manifest of a finished run."""
    manifest: dict[str, Any] = json.loads((out / "manifest.json").read_bytes())
    return manifest


# Tables.


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, and the range where there are several."""
    text = f"{median(values):.{digits}f}"
    return f"{text} ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else text


def print_table(header: list[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """A Markdown table; the first `left` columns are aligned to the left."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    for row in [header, rule, *rows]:
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("| " + " | ".join(cells) + " |")
    print(flush=True)


def print_header(title: str, packages: Sequence[str]) -> None:
    """What was measured, where, when, with what, and how busy the machine is."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    cores = len(os.sched_getaffinity(0))
    print(f"### {title}\n")
    print(f"{date.today().isoformat()}; {cores} cores; Python {platform.python_version()}; {versions}; {load()}.\n")


def load() -> str:
    """The machine's load now."""
    return "load " + " ".join(f"{value:.1f}" for value in os.getloadavg())


# The command line that they share.


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with `--work` and `--lines`."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--lines", type=int, help="of each file of the corpus; default all")
    parser.add_argument("--work", type=Path, help="folder for corpora, caches and outputs; default a temporary one")
    return parser


@contextmanager
def work_folder(work: Path | None) -> Iterator[Path]:
    """The folder given, which stays, or a temporary one."""
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="packtrain-bench-") as folder:
        yield Path(folder)
