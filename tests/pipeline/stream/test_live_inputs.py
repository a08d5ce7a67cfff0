"""What a stream says of its inputs, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import packtrain.pipeline.inputs.scan as sources_module
import pytest
from packtrain.pipeline.stream.live_windows import LiveWindows
from packtrain.schemas.errors import ConfigError

from tests import kit

Open = Callable[..., LiveWindows]
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


def test_turns_that_are_not_proved_are_left_out_and_said_once(live: Open, tmp_path: Path) -> None:
    rows = [row for row in kit.corpus("chats", 120) if row["messages"][0]["role"] == "user"]
    for row in rows[::3]:
        row["messages"][0]["content"] = "HIDE " + row["messages"][0]["content"]
    source = {"name": "rows", "path": str(kit.write(tmp_path / "rows.jsonl", rows))}
    config = kit.configure(tmp_path, source, mask="assistant", tokenizer=REFERENCE | {"chat_template": UNSURE})
    manifest = kit.packed(config).manifest
    left_out = manifest.ledger.total().examples_dropped["unproved"]
    assert left_out == len(rows[::3]) < manifest.ledger.total().examples_made
    heard = kit.Heard()
    windows = list(live(config, window_bytes=9_000, observer=heard).walk(0, 0, 1))
    assert len(windows) > 3
    assert sum(one.ledger.total().examples_dropped.get("unproved", 0) for one in windows) == left_out
    assert sum("cannot be located with certainty" in note for note in heard.notes) == 1


def test_what_needs_all_data_at_once_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"duplicates: drop .* PackedLoader"):
        LiveWindows(kit.configure(tmp_path, "chats", duplicates="drop"), base=tmp_path)
    with pytest.raises(ConfigError, match=r"sources\.chats\.weight: .* `repeat` .* PackedLoader"):
        LiveWindows(kit.configure(tmp_path, kit.source("chats", weight=2)), base=tmp_path)
    for form in ("auto", "preference"):
        config = kit.configure(tmp_path, kit.source("choices", format=form), pack={"strategy": "none"})
        with pytest.raises(ConfigError, match=r"sources\.choices: .*preference pairs are not packed"):
            LiveWindows(config, base=tmp_path, workers=1)
