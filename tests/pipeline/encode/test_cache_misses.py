"""A run says why it encodes again what an earlier one has encoded."""

import json
from pathlib import Path
from typing import Any

from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run.driver import run


class Notes(Silent):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """See Observer."""
        self.notes.append(text)


def test_the_settings_that_differ_are_named(tmp_path: Path, tiny_tokenizer: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]}
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(chat)}\n" * 40)

    def said(name: str, *, limit: int = 1 << 20, **tokenizer: Any) -> list[str]:
        notes = Notes()
        source = {"name": "chats", "format": "messages", "path": str(tmp_path / "chats.jsonl"), "max_row_bytes": limit}
        run(
            {
                "out": str(tmp_path / name),
                "cache": str(tmp_path / "cache"),
                "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers", **tokenizer},
                "sources": [source],
                "truncate": {"max_length": 64},
                "run": {"workers": 1, "report": False},
            },
            observer=notes,
        )
        return [note for note in notes.notes if note.startswith("source chats: ")]

    assert said("first") == []
    assert said("again") == []
    (note,) = said("other", limit=1 << 21, date="2024-01-31")
    assert "1 of 1 block encoded again" in note
    assert note.endswith("have another date, max_row_bytes")
    for path in (tmp_path / "cache" / "encoded").rglob("*.json"):
        path.unlink()
    (note,) = said("gone", limit=1 << 21, date="2024-01-31")
    assert note.endswith("are gone")
