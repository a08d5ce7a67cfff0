"""Windows of every container, format, mask and limit: what a run packs of them, scanned once, or refused by name."""

import csv
import gzip
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import packtrain.pipeline.inputs.scan as sources_module
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.inputs.scan import scan_file, scan_source
from packtrain.pipeline.inputs.scan_cache import scan_inputs
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run.driver import run
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.stream.stream import LiveWindows
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.schemas.ledger import Ledger, SourceLedger

Row = dict[str, Any]
BLOCK, WINDOW = 3_000, 9_000
"""Bytes: blocks of a few rows, windows of a few blocks."""
Config = dict[str, Any]
Open = Callable[..., LiveWindows]
Streamed = Callable[..., tuple[Counter[Any], Ledger, int]]


def chats(count: int) -> list[Row]:
    """Conversations of one to four turns of the assistant, some of whose turns are not to be trained."""
    rows = []
    for i in range(count):
        messages: list[Row] = [{"role": "system", "content": f"chat {i}"}] if i % 3 else []
        for turn in range(1 + i % 4):
            messages.append({"role": "user", "content": f"question {turn} " * (1 + i % 5)})
            messages.append(
                {"role": "assistant", "content": "because " * (1 + i * i % 47), "train": (i + turn) % 7 > 0}
            )
        rows.append({"messages": messages})
    return rows


def texts(count: int) -> list[Row]:
    """Texts of 1 to 300 tokens in paragraphs."""
    return [{"text": f"text {i}\n\n" + "word and number\n\n" * (i * i % 53)} for i in range(count)]


def pairs(count: int) -> list[Row]:
    """Prompts and completions of very different lengths."""
    return [{"prompt": f"{i}? " * (1 + i % 9), "completion": "yes " * (1 + i * i % 71)} for i in range(count)]


def lines(rows: list[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_sources(folder: Path) -> None:
    """Each container once: large row groups, small ones, two compressed files, values, record batches, plain lines."""
    table = pa.Table.from_pylist(chats(120))
    pq.write_table(table, folder / "large.parquet", row_group_size=120)
    pq.write_table(table.slice(0, 60), folder / "small.parquet", row_group_size=4)
    for name, part in (("a", texts(90)[:50]), ("b", texts(90)[50:])):
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines(part) + b"[]\n\n"))
    with (folder / "pairs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "completion"])
        writer.writeheader()
        writer.writerows(pairs(80))
    table = pa.Table.from_pylist(pairs(70))
    with pa.ipc.new_stream(str(folder / "pairs.arrow"), table.schema) as out:
        out.write_table(table, max_chunksize=50)
    (folder / "chats.jsonl").write_bytes(lines(chats(90)))


SOURCES: dict[str, list[str]] = {
    "parquet": ["large.parquet", "small.parquet"],
    "gz": ["a.jsonl.gz", "b.jsonl.gz"],
    "values": ["pairs.csv"],
    "arrow": ["pairs.arrow"],
    "lines": ["chats.jsonl"],
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "BLOCK_BYTES", BLOCK)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of sources, and of the cache that the tests of this file share."""
    folder = tmp_path_factory.mktemp("inputs")
    write_sources(folder)
    return folder


@pytest.fixture
def make(data: Path, tmp_path: Path, tiny_tokenizer: Path) -> Callable[..., Config]:
    """A configuration of these sources, formats found out; `each` gives some of them further keys."""

    def config(each: dict[str, Row] | None = None, **more: Any) -> Config:
        return {
            "out": str(tmp_path / "out"),
            "cache": str(data / "cache"),
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [
                {"name": name, "path": [str(data / path) for path in paths], **(each or {}).get(name, {})}
                for name, paths in SOURCES.items()
            ],
            "truncate": {"max_length": 256},
            "run": {"workers": 1, "report": False},
        } | more

    return config


@pytest.fixture
def live() -> Iterator[Open]:
    """Opens windows in this process; closed at the end."""
    opened = []

    def open_windows(config: Config, **more: Any) -> LiveWindows:
        opened.append(LiveWindows(config, **{"window_bytes": WINDOW, "workers": 0, **more}))
        return opened[-1]

    yield open_windows
    for windows in opened:
        windows.close()


SPLIT = {"max_length": 96, "overlong": "split"}
CASES: dict[str, dict[str, Any]] = {
    "as they are": {},
    "every turn": {"mask": "assistant"},
    "the last turn, without its end": {"mask": {"policy": "last_assistant", "train_end": False}},
    "one example a turn": {"each": {"parquet": {"expand": "per_turn"}, "lines": {"expand": "per_turn"}}},
    "split with overlap": {"mask": "assistant", "truncate": {**SPLIT, "split": {"overlap": 5}}},
    "split anywhere, padded": {"truncate": {**SPLIT, "split": {"at": "tokens", "overlap": 1}}, "pack": {"align": 8}},
    "repeated": {
        "each": {"parquet": {"repeat": 3}, "gz": {"repeat": 2}},
        "truncate": {**SPLIT, "split": {"at": "paragraphs", "overlap": 4}},
    },
    "repeated, held out": {"each": {"lines": {"repeat": 4}}, "holdout": {"fraction": 0.25}, "mask": "assistant"},
    "cut by the strategy, repeated": {
        "each": {"lines": {"repeat": 2}},
        "mask": "assistant",
        "truncate": {"max_length": 64},
        "pack": {"strategy": "bfd_split"},
    },
    "prompt and completion limited": {
        "truncate": {"max_length": 128, "max_prompt_length": 20, "max_completion_length": 60, "keep": "end"}
    },
    "the first rows": {"each": {"parquet": {"max_rows": 31}, "gz": {"max_rows": 67}, "values": {"max_rows": 9}}},
    "filtered": {
        "each": {"values": {"where": "LENGTH(completion) > 20"}, "gz": {"filter": {"max_tokens": 90}}},
        "filter": {"min_tokens": 12},
    },
    "style": {"each": {"values": {"style": "chat"}, "arrow": {"style": "chat"}}, "mask": "assistant"},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_epoch_holds_what_a_run_packs(
    case: str, make: Callable[..., Config], live: Open, streamed: Streamed, packed: Callable[..., Counter[Any]]
) -> None:
    config = make(**CASES[case])
    manifest = run(config)
    expected = packed(config)
    assert len(expected) > 150
    windows = live(config)
    for epoch in (0, 1):
        pieces, ledger, count = streamed(windows, epoch)
        assert count >= 5
        assert pieces == expected
        if "holdout" not in config:
            assert ledger.to_json() == manifest.ledger.to_json()
    has_what_it_is_called_after(case, manifest.ledger.total())


def has_what_it_is_called_after(case: str, total: SourceLedger) -> None:
    """Otherwise a test would compare nothing."""
    if case == "as they are":
        assert total.rows_rejected == {"not_an_object": 2}
        assert total.rows_blank == 2
    if "split" in case:
        assert total.examples_split > 5
    if "overlap" in case:
        assert total.tokens_created["overlap"] > 25
        assert total.turns_cut
    if "repeated" in case:
        assert total.tokens_created["repeats"] > 1000
        assert total.examples_repeated > 50
    if case == "cut by the strategy, repeated":
        assert total.turns_cut > 10
    if case == "the first rows":
        assert total.rows_filtered == {"not_taken": 180 - 31 + 94 - 67 + 80 - 9}
        assert total.rows_read == 180 + 94 + 80 + 70 + 90
    if case == "filtered":
        assert total.examples_dropped["min_tokens"]
        assert total.examples_dropped["max_tokens"]
        assert sum(total.rows_filtered.values()) > 3
    if case in ("every turn", "style"):
        assert total.turns_trained > total.examples_made / 2


def test_both_splits_with_repeats_and_pieces_are_those_of_a_run(
    make: Callable[..., Config], live: Open, streamed: Streamed, packed: Callable[..., Counter[Any]]
) -> None:
    config = make({"parquet": {"repeat": 3}}, holdout={"fraction": 0.3}, truncate={**SPLIT, "split": {"overlap": 2}})
    whole = run(config).ledger.total()
    totals = {}
    for split, other in (("train", "holdout"), ("holdout", "train")):
        pieces, ledger, _ = streamed(live(config, split=split))
        assert pieces == packed(config, split)
        totals[split] = ledger.total()
        assert totals[split].examples_packed == {split: whole.examples_packed[split]}
        assert totals[split].examples_dropped[other] == whole.examples_packed[other] > 20
    for field in ("tokens_packed", "labels_trained", "examples_repeated", "turns_cut", "examples_split"):
        assert sum(getattr(total, field) for total in totals.values()) == getattr(whole, field) > 0


def test_workers_encode_every_container(
    make: Callable[..., Config], live: Open, new_cache: Callable[[Path], Path], tiny_tokenizer: Path
) -> None:
    config = make(mask="assistant")
    here = [window.lay_out(0, window.rows) for window in live(config).walk(0, 0, 1)]
    there = live({**config, "cache": str(new_cache(tiny_tokenizer))}, workers=2)
    assert [window.lay_out(0, window.rows) for window in there.walk(0, 0, 1)] == here
    assert len(here) > 5


class Notes(Silent):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """See Observer."""
        self.notes.append(text)


def test_the_formats_that_were_found_are_said(make: Callable[..., Config], live: Open) -> None:
    heard = Notes()
    live(make(), observer=heard)
    assert [note.partition(",")[0] for note in heard.notes] == [
        "source parquet: format messages",
        "source gz: format text",
        "source values: format prompt_completion",
        "source arrow: format prompt_completion",
        "source lines: format messages",
    ]


UNSURE = (  # of messages that say HIDE nothing can tell where their contents lie
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if 'HIDE' in messages[0].content %}{{ '%s!' % m.content }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_turns_that_are_not_proved_are_left_out_and_said_once(
    make: Callable[..., Config],
    live: Open,
    streamed: Streamed,
    packed: Callable[..., Counter[Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [row for row in chats(120) if row["messages"][0]["role"] == "user"]
    for row in rows[::3]:
        row["messages"][0]["content"] = "HIDE " + row["messages"][0]["content"]
    (tmp_path / "rows.jsonl").write_bytes(lines(rows))
    config = make(mask="assistant", sources=[{"name": "rows", "path": str(tmp_path / "rows.jsonl")}])
    config["tokenizer"]["chat_template"] = UNSURE
    manifest = run(config)
    left_out = manifest.ledger.total().examples_dropped["unproved"]
    assert left_out == len(rows[::3]) < manifest.ledger.total().examples_made
    heard = Notes()
    pieces, ledger, count = streamed(live(config, observer=heard))
    assert (pieces, ledger.to_json()) == (packed(config), manifest.ledger.to_json())
    assert count > 3
    assert sum("cannot be located with certainty" in note for note in heard.notes) == 1
    with caplog.at_level("INFO", "packtrain.pipeline.stream.stream"):
        streamed(live(config))
    found, left_out_too = caplog.records
    assert (found.levelname, left_out_too.levelname) == ("INFO", "WARNING")
    assert found.getMessage().startswith("source rows: format messages, because")
    assert "cannot be located with certainty" in left_out_too.getMessage()

    strict = live({**config, "mask": {"policy": "assistant", "on_unproved": "error"}})
    with pytest.raises(InputError, match=r"rows\.jsonl, line \d+: .* mask: \{on_unproved: reject\}"):
        list(strict.walk(0, 0, 1))


def test_what_needs_all_data_at_once_is_refused(make: Callable[..., Config], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"duplicates: drop .* PackedLoader"):
        LiveWindows(make(duplicates="drop"))
    with pytest.raises(ConfigError, match=r"sources\.parquet\.weight: .* `repeat` .* PackedLoader"):
        LiveWindows(make({name: {"weight": 2} for name in SOURCES}))
    liked = [{"prompt": f"{i}?", "chosen": "yes", "rejected": "no"} for i in range(20)]
    (tmp_path / "liked.jsonl").write_bytes(lines(liked))
    source = {"name": "liked", "path": str(tmp_path / "liked.jsonl")}
    for form in ("auto", "preference"):
        with pytest.raises(ConfigError, match=r"sources\.liked: .*preference pairs are not packed"):
            LiveWindows(make(sources=[{**source, "format": form}]), workers=0)


def test_a_reader_that_changes_is_another_stream(make: Callable[..., Config], live: Open, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(lines([{"body": f"row {i}"} for i in range(30)]))
    source = {"name": "own", "format": "python:live_reader:read", "path": str(tmp_path / "rows.jsonl")}
    reader = tmp_path / "live_reader.py"
    found = []
    for mark in ("!", "?"):
        reader.write_text(f"def read(row):\n    return {{'text': row['body'] + '{mark}'}}\n")
        windows = live(make(sources=[source]), base=tmp_path, workers=1)
        (window,) = windows.walk(0, 0, 1)
        found.append((windows.fingerprint, window.lay_out(0, window.rows)))
    (before, first), (after, second) = found
    assert [name for name in before if before[name] != after[name]] == ["formats"]
    assert first != second


# --- notes of scans ---

SETTLED = 0.2
"""Seconds after which a file is noted: before, another change might have the same time."""


@pytest.fixture
def scan(make: Callable[..., Config], data: Path, tmp_path: Path) -> Callable[..., Any]:
    """Scans copies of the sources with notes: `scan()` gives the files; `fresh` does without notes."""
    folder = tmp_path / "data"
    shutil.copytree(data, folder, ignore=shutil.ignore_patterns("cache"))
    time.sleep(SETTLED)

    def scanned(*, fresh: bool = False, each: dict[str, Row] | None = None) -> Any:
        config = make(each)
        for source in config["sources"]:
            source["path"] = [str(folder / Path(path).name) for path in source["path"]]
        loaded = RunConfig.model_validate(config)
        if fresh:
            return [file for one in loaded.sources for file in scan_source(one, tmp_path, tmp_path / "cache")]
        return scan_inputs(loaded.sources, tmp_path, LocalStore(tmp_path / "cache"))

    return scanned


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources whose files are really scanned, from now on."""
    out: list[str] = []

    def counted(source: str, *arguments: Any) -> Any:
        out.append(source)
        return scan_file(source, *arguments)

    monkeypatch.setattr(sources_module, "scan_file", counted)
    return out


def test_a_note_says_what_the_scan_said(scan: Callable[..., Any], read: list[str]) -> None:
    some = {"parquet": {"max_rows": 31}, "gz": {"max_rows": 50}}
    for each in (None, some):
        first = scan(each=each)
        assert bool(read) == (each is None), "`max_rows` asks for no other scan"
        assert first == scan(fresh=True, each=each)
        read.clear()
        assert scan(each=each) == first
        assert read == []
    assert {block.kind for file in first for block in file.blocks} >= {"batches", "lines", "rows"}


def test_a_note_is_not_believed_when_something_is_otherwise(
    scan: Callable[..., Any], read: list[str], tmp_path: Path
) -> None:
    scan()
    cache = tmp_path / "cache"

    def scanned_again() -> list[str]:
        read.clear()
        found = scan()
        again = sorted(set(read))
        assert found == scan(fresh=True)
        return again

    path = tmp_path / "data" / "pairs.csv"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"yes", b"yea"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    time.sleep(SETTLED)
    assert scanned_again() == ["values"]

    next(block.spooled for file in scan() for block in file.blocks if block.spooled is not None).unlink()
    assert scanned_again() in (["gz"], ["parquet"], ["values"])
    assert scanned_again() == []

    for number, note in enumerate((cache / "scans").iterdir()):
        text = note.read_text()
        note.write_text(text[: len(text) // 2] if number % 2 else text.replace('"start"', '"begin"'))
    assert scanned_again() == sorted(SOURCES)
    assert scanned_again() == []


def test_what_lies_behind_a_url_is_noted_with_its_copy(
    make: Callable[..., Config],
    live: Open,
    streamed: Streamed,
    data: Path,
    tmp_path: Path,
    read: list[str],
    new_cache: Callable[[Path], Path],
    tiny_tokenizer: Path,
) -> None:
    path = tmp_path / "far.parquet"
    shutil.copy(data / "small.parquet", path)
    cache = new_cache(tiny_tokenizer)
    config = make(sources=[{"name": "far", "path": path.as_uri()}], cache=str(cache))
    manifest = run(config)
    pieces, ledger, _ = streamed(live(config))
    assert read == ["far"]
    assert ledger.to_json() == manifest.ledger.to_json()
    assert streamed(live(config))[0] == pieces
    assert read == ["far"]
    (copy,) = (cache / "remote").glob("*.parquet")
    copy.unlink()
    assert streamed(live(config))[0] == pieces
    assert read == ["far", "far"]


@pytest.mark.slow
def test_an_epoch_of_real_data(
    realdata: Path,
    live: Open,
    streamed: Streamed,
    packed: Callable[..., Counter[Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Tool calls, trees of conversations, meetings and texts, in four containers, by a template that hides turns."""
    monkeypatch.setattr(sources_module, "BLOCK_BYTES", 1 << 19)

    def rows(path: str) -> list[bytes]:
        return (realdata / path).read_bytes().splitlines(keepends=True)

    (tmp_path / "tools.jsonl.gz").write_bytes(gzip.compress(b"".join(rows("chat/sgd_dev.jsonl")[:600])))
    table = pa.Table.from_pylist([json.loads(row) for row in rows("chat/oasst_en100_paths.jsonl")])
    pq.write_table(table, tmp_path / "trees.parquet", row_group_size=50)
    with pa.CompressedOutputStream(str(tmp_path / "meetings.jsonl.zst"), "zstd") as out:
        out.write(b"".join(rows("longdoc/qmsum_meeting_qa.jsonl")[:40]))
    config = {
        "out": str(tmp_path / "out"),
        "tokenizer": {"path": str(realdata / "tokenizers" / "qwen3")},
        "sources": [
            {"name": "tools", "path": str(tmp_path / "tools.jsonl.gz")},
            {"name": "trees", "path": str(tmp_path / "trees.parquet"), "repeat": 2},
            {"name": "meetings", "path": str(tmp_path / "meetings.jsonl.zst")},
            {"name": "logs", "path": str(realdata / "chat" / "tau_bench_gpt4o_airline.jsonl")},
            {"name": "texts", "path": str(realdata / "longdoc" / "peps.jsonl"), "max_rows": 100},
        ],
        "mask": "assistant",
        "truncate": {"max_length": 2048, "overlong": "split", "split": {"overlap": 16}},
        "run": {"workers": 2, "report": False},
    }
    manifest = run(config)
    expected = packed(config)
    windows = live(config, window_bytes=2 << 20, workers=2)
    for epoch in (0, 1):
        pieces, ledger, count = streamed(windows, epoch)
        assert count >= 3
        assert pieces == expected
        assert ledger.to_json() == manifest.ledger.to_json()
    total = manifest.ledger.total()
    assert total.labels_trained > 500_000
    assert min(total.examples_split, total.examples_repeated, total.turns_trained, total.tokens_created["overlap"]) > 99
