"""Windows of every container and format: encoded by workers as in one process, or refused by name."""

import csv
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import packtrain.pipeline.inputs.scan as sources_module
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run.run import run
from packtrain.pipeline.stream.stream import LiveWindows
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.schemas.ledger import Ledger

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
    with pytest.raises(InputError, match=r"rows\.jsonl, line \d+: .* mask\.on_unproved=reject"):
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
