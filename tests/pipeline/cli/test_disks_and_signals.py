"""Odd lines, other runs in a folder, small disks and interruptions: the same rows, or nothing that looks finished."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
from packtrain.pipeline.dataset.output_folder import read_manifest
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.manifest import Manifest

from tests.support import warm

PROGRAM = Path(sys.executable).parent / "packtrain"
TEXT = b'{"text": "hello world"}\n'
CHAT = b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\n'


class Outcome(Protocol):
    """What a command said, and its exit code."""

    @property
    def code(self) -> int: ...
    @property
    def out(self) -> str: ...
    @property
    def err(self) -> str: ...


Command = Callable[..., Outcome]
Popen = subprocess.Popen[str]


class Packer:
    """Packs one file of bytes by the command line: `pack(b"...", "--max-length", 7)`."""

    def __init__(self, command: Command, folder: Path, tokenizer: Path, cache: Path) -> None:
        self.command = command
        self.tokenizer = tokenizer
        self.cache = cache
        self.folder = folder
        self.file = folder / "in.jsonl"
        self.out = folder / "out"

    def __call__(self, data: bytes | None, *more: object, format: str = "text") -> Outcome:
        if data is not None:
            self.file.write_bytes(data)
        return self.command(*self.arguments(*more, format=format))

    def arguments(self, *more: object, format: str = "text") -> list[object]:
        """The command line."""
        return [
            "run", "--format", format, "--input", self.file, "--tokenizer", self.tokenizer, "--out", self.out,
            "--workers", 1, "--no-report", "--set", f"cache={self.cache}", "--set", "tokenizer.engine=tokenizers",
            *more,
        ]  # fmt: skip

    def refused(self, data: bytes | None, *more: object, format: str = "text", code: int = 2) -> str:
        """The message of a command that must fail, and leave nothing that looks finished."""
        before = read_manifest(LocalStore(self.out)) if self.out.is_dir() else None
        done = self(data, *more, format=format)
        assert done.code == code, done
        assert done.err.startswith("packtrain: ")
        assert "Traceback" not in done.err
        if before is None:
            assert not (self.out / "manifest.json").exists()
        else:
            assert read_manifest(LocalStore(self.out)) == before
        return done.err

    def packed(self, data: bytes | None, *more: object, format: str = "text") -> Manifest:
        """The manifest of a command that must succeed, and whose dataset must be sound."""
        done = self(data, *more, format=format)
        assert (done.code, done.err) == (0, ""), done
        manifest = read_manifest(LocalStore(self.out))
        assert manifest is not None
        assert self.command("verify", self.out, "--deep").code == 0
        return manifest

    def rejects(self) -> list[tuple[int, str, str]]:
        """(line, reason, detail) of rejects.jsonl."""
        lines = (self.out / "rejects.jsonl").read_text(encoding="utf-8").splitlines()
        return [(row["line"], row["reason"], row["detail"]) for row in map(json.loads, lines)]


@pytest.fixture
def pack(packtrain: Command, tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[], Path]) -> Packer:
    return Packer(packtrain, tmp_path, tiny_tokenizer, new_cache())


# Rows


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_the_deepest_row_is_packed(pack: Packer) -> None:
    """Nesting below the limit passes every reader: templates, filters, one example per turn."""
    tools = f'[{{"type": "function", "function": {{"name": "f", "parameters": {nested(95)}}}}}]'
    line = CHAT.removesuffix(b"}\n") + b', "tools": ' + tools.encode() + b"}\n"
    template = (
        "{{ tools | tojson }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    (pack.folder / "tools.jinja").write_text(template)
    more = [
        f"tokenizer.chat_template={pack.folder / 'tools.jinja'}",
        "sources.0.where=LENGTH(tools) > 90",
        "sources.0.expand=per_turn",
    ]
    pack.packed(line, *(word for one in more for word in ("--set", one)), format="messages")
    assert pack.rejects() == []


SAME = [
    ("byte order mark", b"\xef\xbb\xbf" + TEXT * 3),
    ("line ends of Windows", TEXT.replace(b"\n", b"\r\n") * 3),
    ("no line end at the end", (TEXT * 3).rstrip()),
    ("blank lines", b"\n" + TEXT + b"  \n\r\n" + TEXT * 2 + b"\n\n"),
    ("spaces", b" " + TEXT.replace(b": ", b" :\t") * 3),
]


def test_how_lines_are_written_is_of_no_matter(pack: Packer, read_rows: Callable[..., list[dict[str, Any]]]) -> None:
    pack.packed(TEXT * 3)
    rows = read_rows(pack.out)
    for name, data in SAME:
        shutil.rmtree(pack.out)
        manifest = pack.packed(data)
        assert pack.rejects() == [], name
        assert manifest.ledger.sources["text"].rows_used == 3, name
        assert rows == read_rows(pack.out), name


def long_row(megabytes: int) -> bytes:
    return b'{"text": "' + b"so it goes " * -(-megabytes * 1_000_000 // 11) + b'"}\n'


@pytest.mark.slow
def test_a_row_beyond_the_default_limit_is_packed_where_it_may_be(pack: Packer) -> None:
    manifest = pack.packed(
        TEXT + long_row(17), "--set", "sources.0.max_row_bytes=64MiB", "--set", "pack.strategy=bfd_split"
    )
    assert manifest.ledger.sources["text"].rows_used == 2
    assert manifest.ledger.sources["text"].tokens_packed > 3_400_000


# Output folders


CHANGES: list[tuple[list[object], bytes, str]] = [
    (["--max-length", 77], TEXT, "truncate.max_length: 2048 → 77"),
    (["--set", "seed=1"], TEXT, "seed: 42 → 1"),
    (["--set", "sources.0.name=b"], TEXT, "sources.0.name"),
    (["--format", "messages"], TEXT, "sources.messages.format"),
    ([], TEXT * 2, "24 → 48 bytes"),
]


@pytest.mark.parametrize(("options", "data", "what"), CHANGES)
def test_another_run_on_the_same_folder_is_refused_with_what_differs(
    pack: Packer, options: list[object], data: bytes, what: str
) -> None:
    pack.packed(TEXT)

    def contents() -> dict[Path, bytes]:
        leases = pack.out / "_run" / "lease"  # whoever works there now, and whoever was refused
        return {path: path.read_bytes() for path in pack.out.rglob("*") if path.is_file() and path.parent != leases}

    files = contents()
    assert what in pack.refused(data, *options)
    assert contents() == files
    shutil.rmtree(pack.out / "_run")  # as in a dataset that was copied: its manifest still says whose it is
    assert what in pack.refused(data, *options)


def test_the_same_run_on_a_copy_without_its_notes(pack: Packer) -> None:
    manifest = pack.packed(TEXT)
    shutil.rmtree(pack.out / "_run")
    assert pack.packed(None) == manifest


# Disks. Root may write anywhere, so these need a file system of their own, and leave to mount it.


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`mounted("size=4m")` is a folder on a file system in memory, made or changed."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        again = "remount," if place.is_mount() else ""
        command = ["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(place)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if done.returncode:
            pytest.skip(f"mounting is not permitted: {done.stderr.strip()}")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_a_folder_that_cannot_be_written(pack: Packer, mounted: Callable[[str], Path]) -> None:
    pack.out = mounted("ro") / "out"
    assert str(pack.out) in pack.refused(TEXT)
    prep = ("prep", "--format", "text", "--input", pack.file, "-o", pack.out.parent / "x.jsonl")
    assert pack.command(*prep).code == 2
    cache, pack.out = pack.out, pack.folder / "elsewhere"
    assert f"{cache}" in pack.refused(TEXT, "--set", f"cache={cache}")


def test_a_disk_too_small_is_told_before_the_work(pack: Packer, mounted: Callable[[str], Path]) -> None:
    pack.out = mounted("size=1m") / "out"
    assert str(pack.out) in pack.refused(TEXT * 100_000, code=1)
    left = sorted(path.name for path in pack.out.rglob("*") if path.is_file())
    assert left == ["failed.json", "run-000001.json"]  # for whoever waits for it


# Kills and interruptions


@dataclass(frozen=True)
class Corpus:
    """Many small inputs, and what an undisturbed run makes of them."""

    config: Path
    manifest: bytes
    parts: int
    shards: int


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    chance = random.Random(1)
    words = [
        "the",
        "mules",
        "left",
        "valley",
        "before",
        "sun",
        "was",
        "up",
        "def",
        "return",
        "for",
        "in",
        "range",
        "1",
        "22",
        "333",
        "über",
        "naïve",
        "中文",
        "🙂",
    ]
    names = [f"{number:03d}.jsonl" for number in range(40)]
    for name in names:
        rows = [{"text": " ".join(chance.choices(words, k=chance.randrange(5, 200)))} for _ in range(60)]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "out": "out",
        "cache": "cache",
        "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
        # A source each, so that they are not joined: there should be many tasks to kill.
        "sources": [{"name": f"words-{name[:3]}", "format": "text", "path": name} for name in names],
        "truncate": {"max_length": 256},
        "output": {"shard_bytes": "96KiB"},
        "run": {"workers": 2, "report": False},
    }
    (folder / "run.yaml").write_text(json.dumps(config))
    done = warm.run(["run", folder / "run.yaml"])
    assert (done.returncode, done.stderr) == (0, "")
    shards = len(list((folder / "out" / "shards").iterdir()))
    assert shards > 24
    return Corpus(folder / "run.yaml", (folder / "out" / "manifest.json").read_bytes(), len(names), shards)


class Started:
    """A run in its own process group, stopped at a point of its work."""

    def __init__(self, corpus: Corpus, folder: Path, start: Callable[[list[str]], warm.Process | Popen]) -> None:
        self.out = folder / "out"
        self.cache = folder / "cache"
        self.command = ["run", str(corpus.config), "--out", str(self.out), "--set", f"cache={self.cache}"]
        self.process = start(self.command)
        self.family: list[psutil.Process] = []

    def reach(self, stage: str) -> None:
        """Wait until ten tasks of a stage are done."""
        place, pattern = (self.cache, "encoded/*/*.json") if stage == "encode" else (self.out, "_run/shards/*.json")
        end = time.monotonic() + 60
        while len(list(place.glob(pattern))) < 10:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.002)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def ended(self) -> Outcome:
        """Wait for the run and for everything that it started."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode is not None
        end = time.monotonic() + 20
        while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in self.family):
            assert time.monotonic() < end, "it left processes behind"
            time.sleep(0.02)
        return Ended(self.process.returncode, out, err)

    def finish(self, corpus: Corpus) -> None:
        """The same command again makes what an undisturbed run makes, and clears away what was left."""
        assert not (self.out / "manifest.json").exists(), "it was stopped too late to show anything"
        done = warm.run(self.command)
        assert (done.returncode, done.stderr) == (0, "")
        assert (self.out / "manifest.json").read_bytes() == corpus.manifest
        assert list(self.out.rglob(".tmp-*")) == []
        assert verify(self.out, deep=True).sound


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def started(corpus: Corpus, tmp_path: Path) -> Iterator[Started]:
    yield from start(corpus, tmp_path, warm.Process)


@pytest.fixture
def installed(corpus: Corpus, tmp_path: Path) -> Iterator[Started]:
    """The same, by the installed program."""

    def program(arguments: list[str]) -> Popen:
        return subprocess.Popen(
            [PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    yield from start(corpus, tmp_path, program)


def start(corpus: Corpus, folder: Path, how: Callable[[list[str]], warm.Process | Popen]) -> Iterator[Started]:
    run = Started(corpus, folder, how)
    yield run
    with suppress(ProcessLookupError):
        os.killpg(run.process.pid, signal.SIGKILL)
    run.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stage", ["encode", pytest.param("pack", marks=pytest.mark.slow)])
def test_an_interruption_says_how_to_go_on(
    started: Started, corpus: Corpus, stage: str, number: signal.Signals
) -> None:
    started.reach(stage)
    os.killpg(started.process.pid, number)  # a terminal sends it to the whole group, and so does a scheduler
    ended = started.ended()
    assert ended.code == 130
    assert list(started.out.rglob(".tmp-*")) + list(started.cache.rglob(".tmp-*")) == []
    started.finish(corpus)
