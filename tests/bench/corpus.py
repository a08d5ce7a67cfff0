"""What the benchmarks of whole runs share: the corpus, commands whose whole process tree is counted, and tables.

The corpus is apps/train.jsonl and apps/leetcode_apps_schema.jsonl (format apps) and chat/gsm8k_train.jsonl (format
messages) under the folder that PACKTRAIN_REALDATA names, with the Qwen3 tokenizer. A corpus of k copies holds the
lines of each file k times, in one file: first in their own order, then reshuffled for each copy, so that no two blocks
of the input are equal, and none is found in the cache.
"""

import argparse
import ctypes
import json
import marshal
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
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

# What is imported here is imported by the peers' processes too, whose start is measured: so packtrain comes later.
if TYPE_CHECKING:
    from packtrain.schemas.manifest import Manifest

FILES: tuple[tuple[str, Literal["apps", "messages"], str], ...] = (
    ("apps", "apps", "apps/train.jsonl"),
    ("leetcode", "apps", "apps/leetcode_apps_schema.jsonl"),
    ("gsm8k", "messages", "chat/gsm8k_train.jsonl"),
)
"""(source, format, path below the real data)."""
TOKENIZER = "tokenizers/qwen3"
MAX_LENGTH = 2048
SHARD_BYTES = 64 << 20
"""Small enough that both workers have shards to write."""
LINGER_SECONDS = 60.0
"""How long a command's last processes may outlive it before the benchmark gives up."""

Row = dict[str, Any]
"""A conversation as other tools read it: `prompt` and `completion`, lists of messages."""


def realdata() -> Path:
    """The folder of real data.

    Raises:
        SystemExit: PACKTRAIN_REALDATA names none.
    """
    folder = os.environ.get("PACKTRAIN_REALDATA")
    if not folder:
        raise SystemExit("set PACKTRAIN_REALDATA to the folder that holds apps/, chat/ and tokenizers/")
    return Path(folder).absolute()


# The corpus.


@dataclass(frozen=True)
class BaseFile:
    """One file of the corpus, its lines apart."""

    lines: list[bytes]
    rows: list[list[Row]]
    """The examples of each line."""
    texts: list[list[str]]
    """The same, rendered by transformers."""

    def order(self, copies: int) -> Iterator[int]:
        """The lines of so many copies: first in order, then shuffled."""
        order = list(range(len(self.lines)))
        yield from order
        for copy in range(1, copies):
            random.Random(copy).shuffle(order)
            yield from order


@cache
def base_files() -> tuple[BaseFile, ...]:
    """The files as they are, with the examples that packtrain's prep makes of each line."""
    from packtrain.pipeline.inputs.format_options import format_options
    from packtrain.schemas.config.config import SourceConfig
    from packtrain.stages.prep import make_format
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(realdata() / TOKENIZER)
    files = []
    for name, format_name, path in FILES:
        lines = (realdata() / path).read_bytes().splitlines(keepends=True)
        options = format_options(SourceConfig(name=name, format=format_name, path=(path,)))
        prepared = make_format(format_name, options).prepare(enumerate(lines))
        rows: list[list[Row]] = [[] for _ in lines]
        texts: list[list[str]] = [[] for _ in lines]
        for example in prepared.examples:
            assert isinstance(example.prompt, list)
            assert isinstance(example.completion, list)
            rows[example.line].append({"prompt": example.prompt, "completion": example.completion})
            rendered = tokenizer.apply_chat_template(example.prompt + example.completion, tokenize=False)
            texts[example.line].append(rendered)
        files.append(BaseFile(lines, rows, texts))
    return tuple(files)


@dataclass(frozen=True)
class Corpus:
    """So many copies of the files, written to a folder."""

    folder: Path
    copies: int
    input_bytes: int
    text_bytes: int
    """Of the rendered texts, in UTF-8."""
    examples: int

    @property
    def name(self) -> str:
        """How the tables call it."""
        return "first pass" if self.copies == 1 else f"repeated x{self.copies}"

    def config(self, home: Path, **more: Any) -> Path:
        """Write a configuration that keeps `out` and cache in `home`, a folder that is emptied first."""
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        data: dict[str, Any] = {
            "version": 1,
            "out": str(home / "out"),
            "cache": str(home / "cache"),
            "tokenizer": {"path": str(realdata() / TOKENIZER)},
            "sources": [
                {"name": name, "format": format_name, "path": str(self.folder / f"{name}.jsonl")}
                for name, format_name, _ in FILES
            ],
            "truncate": {"max_length": MAX_LENGTH},
            "output": {"shard_bytes": SHARD_BYTES},
        }
        path = home / "config.yaml"
        path.write_text(json.dumps(data | more), encoding="utf-8")  # JSON is YAML
        return path

    def examples_in_order(self) -> Iterator[tuple[Row, str]]:
        """Each example with its rendered text."""
        for file in base_files():
            for line in file.order(self.copies):
                yield from zip(file.rows[line], file.texts[line], strict=True)

    def write_rows(self) -> Path:
        """The examples as prompt/completion JSONL, for TRL."""
        path = self.folder / "rows.jsonl"
        if not path.exists():
            with path.open("w", encoding="utf-8") as file:
                for row, _ in self.examples_in_order():
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return path

    def write_texts(self, halves: int = 2, every: int = 1) -> list[Path]:
        """The rendered texts, every n-th of them, cut in files of about equal bytes for `read_texts`."""
        paths = [self.folder / f"texts-{every}-{half + 1}of{halves}.bin" for half in range(halves)]
        if not all(path.exists() for path in paths):
            texts = [text for index, (_, text) in enumerate(self.examples_in_order()) if index % every == 0]
            total = sum(len(text.encode()) for text in texts)
            groups: list[list[str]] = [[] for _ in paths]
            done = 0
            for text in texts:
                groups[min(halves - 1, done * halves // total)].append(text)
                done += len(text.encode())
            for path, group in zip(paths, groups, strict=True):
                with path.open("wb") as file:
                    marshal.dump(group, file, 2)  # version 2 writes equal strings apart, so they are read apart
        return paths


def read_texts(path: Path) -> list[str]:
    """What `write_texts` wrote: strings that share no memory."""
    with path.open("rb") as file:
        texts = marshal.load(file)
    assert isinstance(texts, list)
    return texts


def build(work: Path, copies: int) -> Corpus:
    """Write the corpus of so many copies below the work folder.

    Raises:
        SystemExit: a block of the input repeats another.
    """
    from packtrain.pipeline.inputs.scan import scan_source
    from packtrain.schemas.config.config import SourceConfig

    folder = work / f"corpus-{copies}"
    folder.mkdir(parents=True, exist_ok=True)
    size = text_bytes = examples = 0
    for (name, format_name, _), file in zip(FILES, base_files(), strict=True):
        path = folder / f"{name}.jsonl"
        with path.open("wb") as sink:
            for line in file.order(copies):
                sink.write(file.lines[line])
        size += path.stat().st_size
        text_bytes += copies * sum(len(text.encode()) for texts in file.texts for text in texts)
        examples += copies * sum(map(len, file.rows))
        (scanned,) = scan_source(
            SourceConfig(name=name, format=format_name, path=(str(path),)), folder, folder / "cache"
        )
        hashes = [block.hash for block in scanned.blocks]
        if len(set(hashes)) < len(hashes):
            raise SystemExit(f"{path}: a block repeats another and would be encoded once; change the shuffling")
    return Corpus(folder, copies, size, text_bytes, examples)


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
    command = Path(sys.executable).with_name("packtrain")
    arguments: list[str | Path] = [command, "run", config, "--workers", str(workers), *more]
    return run_counted(arguments, config.with_name("log.txt"), watch=watch)


def read_timings(out: Path) -> dict[str, float]:
    """Wall seconds of each stage of a finished run."""
    seconds: dict[str, float] = json.loads((out / "_run" / "timings.json").read_bytes())["seconds"]
    return seconds


def read_manifest(out: Path) -> "Manifest":
    """The manifest of a finished run."""
    from packtrain.schemas.manifest import Manifest

    return Manifest.from_json(json.loads((out / "manifest.json").read_bytes()))


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
    """A parser with `--work`."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
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
