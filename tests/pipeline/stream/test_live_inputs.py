"""What a stream says of its inputs and its engine, and what it refuses."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import packtrain.pipeline.inputs.scan as sources_module
import pytest
from packtrain.pipeline.encode import task as encode
from packtrain.pipeline.stream import stream
from packtrain.pipeline.stream.stream import LiveWindows
from packtrain.schemas.errors import ConfigError, InputError, IntegrityError
from packtrain.schemas.ledger import Ledger
from packtrain.stages.tokenize import encode as stage
from packtrain.stages.tokenize import engines

from tests import kit
from tests.support.in_this_process import InThisProcess

Open = Callable[..., LiveWindows]
Streamed = Callable[..., tuple[Counter[Any], Ledger, int]]
REFERENCE = {"engine": "tokenizers"}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few rows."""
    monkeypatch.setattr(sources_module, "BLOCK_BYTES", 3_000)


UNSURE = (  # of messages that say HIDE nothing can tell where their contents lie
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if 'HIDE' in messages[0].content %}{{ '%s!' % m.content }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_turns_that_are_not_proved_are_left_out_and_said_once(
    live: Open,
    streamed: Streamed,
    packed: Callable[..., Counter[Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [row for row in kit.corpus("chats", 120) if row["messages"][0]["role"] == "user"]
    for row in rows[::3]:
        row["messages"][0]["content"] = "HIDE " + row["messages"][0]["content"]
    source = {"name": "rows", "path": str(kit.write(tmp_path / "rows.jsonl", rows))}
    config = kit.configure(tmp_path, source, mask="assistant", tokenizer=REFERENCE | {"chat_template": UNSURE})
    manifest = kit.packed(config).manifest
    left_out = manifest.ledger.total().examples_dropped["unproved"]
    assert left_out == len(rows[::3]) < manifest.ledger.total().examples_made
    heard = kit.Heard()
    pieces, ledger, count = streamed(live(config, window_bytes=9_000, observer=heard))
    assert (pieces, ledger.to_json()) == (packed(config), manifest.ledger.to_json())
    assert count > 3
    assert sum("cannot be located with certainty" in note for note in heard.notes) == 1
    with caplog.at_level("INFO", "packtrain.pipeline.stream.stream"):
        streamed(live(config, window_bytes=9_000))
    found, left_out_too = caplog.records
    assert (found.levelname, left_out_too.levelname) == ("INFO", "WARNING")
    assert found.getMessage().startswith("source rows: format messages, because")
    assert "cannot be located with certainty" in left_out_too.getMessage()

    strict = live({**config, "mask": {"policy": "assistant", "on_unproved": "error"}})
    with pytest.raises(InputError, match=r"rows\.jsonl, line \d+: .* mask\.on_unproved=reject"):
        list(strict.walk(0, 0, 1))


def test_what_needs_all_data_at_once_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"duplicates: drop .* PackedLoader"):
        LiveWindows(kit.configure(tmp_path, "chats", duplicates="drop"), base=tmp_path)
    with pytest.raises(ConfigError, match=r"sources\.chats\.weight: .* `repeat` .* PackedLoader"):
        LiveWindows(kit.configure(tmp_path, kit.source("chats", weight=2)), base=tmp_path)
    for form in ("auto", "preference"):
        with pytest.raises(ConfigError, match=r"sources\.choices: .*preference pairs are not packed"):
            LiveWindows(kit.configure(tmp_path, kit.source("choices", format=form)), base=tmp_path, workers=0)


def test_a_reader_that_changes_is_another_stream(live: Open, tmp_path: Path) -> None:
    kit.write(tmp_path / "rows.jsonl", [{"body": f"row {i}"} for i in range(30)])
    config = kit.configure(tmp_path, {"name": "own", "format": "python:live_reader:read", "path": "rows.jsonl"})
    found = []
    for mark in ("!", "?"):
        (tmp_path / "live_reader.py").write_text(f"def read(row):\n    return {{'text': row['body'] + '{mark}'}}\n")
        windows = live(config, base=tmp_path, workers=1)
        (window,) = windows.walk(0, 0, 1)
        found.append((windows.fingerprint, window.lay_out(0, window.rows)))
    (before, first), (after, second) = found
    assert [name for name in before if before[name] != after[name]] == ["formats"]
    assert first != second


@pytest.fixture
def lying_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """fastokens, but wrong on one word; and every text is compared with the reference."""
    pytest.importorskip("fastokens")
    kept = (encode.load_encoder, engines.load_engine)  # in a process; a lying one must not outlive its test

    class Lying(engines.FastokensEngine):
        def encode(self, texts: Any, **options: Any) -> engines.EngineTokens:
            return super().encode([text.replace("MOON", "MOO") for text in texts], **options)

    monkeypatch.setattr(stream, "Pool", InThisProcess)
    monkeypatch.setitem(engines.ENGINES, "fastokens", Lying)
    monkeypatch.setattr(stage, "ENGINE_CHECK", 0)
    for one in kept:
        one.cache_clear()
    yield
    for one in kept:
        one.cache_clear()


def test_a_lying_engine_ends_the_stream(live: Open, lying_engine: None, tmp_path: Path) -> None:
    """It is found wrong in the middle: the first look sees the first rows of the first block only."""
    rows = [{"text": f"row {number} says {'MOON' if number % 100 == 99 else 'sun'}"} for number in range(400)]
    kit.write(tmp_path / "rows.jsonl", rows)
    source = {"name": "texts", "format": "text", "path": "rows.jsonl"}
    for keys in ({}, {}, {"tokenizer": REFERENCE}):
        windows = live(kit.configure(tmp_path, source, **keys), base=tmp_path, window_bytes=1)
        if keys:
            assert sum(window.rows for window in windows.walk(0, 0, 1)) > 1
        else:
            with pytest.raises(IntegrityError, match=r"fastokens .*MOON.*engine=tokenizers"):
                list(windows.walk(0, 0, 1))
