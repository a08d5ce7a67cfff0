"""What a stream says of its inputs, and what it refuses."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import packtrain.pipeline.inputs.scan as sources_module
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


def lines(rows: list[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "BLOCK_BYTES", BLOCK)


@pytest.fixture
def make(tmp_path: Path, tiny_tokenizer: Path) -> Callable[..., Config]:
    """A configuration of chats, their format found out."""
    (tmp_path / "chats.jsonl").write_bytes(lines(chats(90)))

    def config(**more: Any) -> Config:
        return {
            "out": str(tmp_path / "out"),
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [{"name": "chats", "path": str(tmp_path / "chats.jsonl")}],
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
    source = make()["sources"][0]
    with pytest.raises(ConfigError, match=r"sources\.chats\.weight: .* `repeat` .* PackedLoader"):
        LiveWindows(make(sources=[source | {"weight": 2}]))
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
