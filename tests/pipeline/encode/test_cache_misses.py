"""A run says why it encodes again what an earlier one has encoded."""

from pathlib import Path
from typing import Any

import pytest

from tests import kit

pytestmark = pytest.mark.usefixtures("tokenizer_loader")


def test_the_settings_that_differ_are_named(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]}
    kit.write(tmp_path / "chats.jsonl", [chat] * 40)

    def said(name: str, *, limit: int = 1 << 20, **tokenizer: Any) -> list[str]:
        source = kit.source("chats", max_row_bytes=limit)
        config = kit.configure(tmp_path, source, out=str(tmp_path / name), tokenizer=tokenizer)
        return [note for note in kit.packed(config).notes if note.startswith("source chats: ")]

    assert said("first") == []
    assert said("again") == []
    (note,) = said("other", limit=1 << 21, date="2024-01-31")
    assert "1 of 1 block encoded again" in note
    assert note.endswith("have another date, max_row_bytes")
    for path in (tmp_path / "cache" / "encoded").rglob("*.json"):
        path.unlink()
    (note,) = said("gone", limit=1 << 21, date="2024-01-31")
    assert note.endswith("are gone")
