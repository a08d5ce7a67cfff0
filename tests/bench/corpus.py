"""What the benchmarks share: a corpus of real data, commands counted to their last process, and tables.

The corpus is APPS, LeetCode and GSM8K as they are, or so many copies of them. In further copies the lines are shuffled,
so that no block of the input repeats another, and all of it is read, rendered and encoded again.
"""

import ctypes
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

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
            "run": {"workers": 2},
        }
        path = home / "config.yaml"
        path.write_text(json.dumps(data), encoding="utf-8")  # JSON is YAML
        return path

    def prompts_and_completions(self) -> tuple[Path, int]:
        """The examples as JSONL of prompt and completion, as TRL reads them, and the bytes of their messages."""
        whole, size = self.folder / "rows.jsonl", 0
        with whole.open("wb") as sink:
            for name, (format, _) in FILES.items():
                part = self.folder / f"{name}-prepared.jsonl"
                words = [
                    "--set",
                    f"sources.0.format={format}",
                    "--input",
                    str(self.folder / f"{name}.jsonl"),
                    "-o",
                    str(part),
                ]
                subprocess.run([PROGRAM, "prep", *words], check=True, capture_output=True)
                for line in part.read_bytes().splitlines():
                    row = json.loads(line)
                    messages = row.get("messages") or row["prompt"] + row["completion"]
                    size += sum(len(message["content"].encode()) for message in messages)
                    sink.write(json.dumps({"prompt": messages[:-1], "completion": messages[-1:]}).encode() + b"\n")
        return whole, size


def build(work: Path, copies: int) -> Corpus:
    """Write the corpus of so many copies below the work folder."""
    folder = work / f"corpus-{copies}"
    folder.mkdir(parents=True)
    for name, (_, path) in FILES.items():
        rows = (realdata() / path).read_bytes().splitlines(keepends=True)
        with (folder / f"{name}.jsonl").open("wb") as sink:
            sink.writelines(rows)
            for copy in range(1, copies):
                random.Random(copy).shuffle(rows)
                sink.writelines(rows)
    return Corpus(folder, copies)


# Commands, counted to the last process.


@dataclass(frozen=True)
class Cost:
    """What a command cost, from its start to its exit."""

    wall: float
    """Seconds."""
    cpu: float
    """Seconds of user and system time, of all its processes."""
    peak: int
    """The most bytes that its processes held together at one moment; 0 if it was not measured."""


def run_counted(
    command: Sequence[object], log: Path, environment: Mapping[str, str] | None = None, memory: bool = False
) -> Cost:
    """Run a command and count its whole process tree. This process must have no other children meanwhile.

    Args:
        log: takes the command's output.
        environment: set on top of this process's own.
        memory: look at its memory some twenty times a second, which takes a little of a core.

    Raises:
        SystemExit: the command failed.
    """
    # A fork server outlives the command that started it by a moment. It becomes a child of this process, and is
    # waited for; without this, its time and that of its workers would not be counted.
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) != 0:  # PR_SET_CHILD_SUBREAPER
        raise SystemExit("only Linux can count the processes that a command leaves behind")
    os.sync()  # what an earlier command left to be written is not this one's to wait for
    wall, cpu, peak = 0.0, 0.0, 0
    with log.open("wb") as sink:
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        with suppress(ChildProcessError):  # all have ended
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG if memory else 0)
                if pid == 0:
                    peak = max(peak, held_below(process.pid))
                    time.sleep(0.05)
                    continue
                cpu += usage.ru_utime + usage.ru_stime
                if pid == process.pid:
                    wall = time.perf_counter() - began
                    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise SystemExit(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{tail}")
    return Cost(wall, cpu, peak)


def held_below(root: int) -> int:
    """Bytes that a process and those below it hold for themselves. Mapped files are the page cache's."""
    held = 0
    with suppress(psutil.Error):
        for one in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
            with suppress(OSError):  # it has just ended
                for line in Path(f"/proc/{one.pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
                    if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                        held += int(line.split()[1]) * 1024
    return held


# Tables.


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, and the range where there are several."""
    text = f"{statistics.median(values):.{digits}f}"
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
    cores, load = len(os.sched_getaffinity(0)), " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"### {title}\n")
    print(f"{date.today().isoformat()}; {cores} cores; Python {platform.python_version()}; {versions}; load {load}.\n")
