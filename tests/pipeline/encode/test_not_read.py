"""No column and no key of a message vanishes unsaid: what is not read is listed, for every row of every source."""

from pathlib import Path

import pytest

from tests import kit
from tests.kit import Row

ANSWER = {"role": "assistant", "content": "a", "tool_call_id": "1", "train": True}
PLAIN = {"messages": [{"role": "user", "content": "q"}, ANSWER]}
LATE: Row = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "q", "cache": 1}], "name": None, "lang": "en"},
        {**ANSWER, "loss": True, "score": 5},
    ],
    "meta": {"a": 1},
    "messages_old": [],
}


def rows(late: int) -> list[Row]:
    """Many rows, of which only a late one has more than a conversation."""
    return [{**PLAIN, "id": number} for number in range(late)] + [{**LATE, "id": late}]


@pytest.mark.parametrize(("name", "workers"), [("chats.jsonl", 1), ("chats.jsonl.gz", 2)])
def test_what_is_not_read_is_listed(tmp_path: Path, name: str, workers: int) -> None:
    kit.tokenizer(tmp_path / "tokenizer")
    kit.write(tmp_path / name, rows(700))
    template = kit.CHATML.replace("message.content +", "(message.lang or '') + message.content +")
    config = kit.configure(
        tmp_path,
        {"name": "chats", "path": name},
        tokenizer={"path": str(tmp_path / "tokenizer"), "chat_template": template},
        run={"workers": workers},
        mask="assistant",
    )
    packed = kit.packed(config)
    notes = [note for note in packed.notes if "not read" in note]
    (note,) = notes
    assert note.startswith("source chats: not read: id, messages_old, meta; of messages: content[].cache, score")
    ledger = packed.ledger["chats"]
    assert ledger["columns_not_read"]["id"] == 701
    assert set(ledger["columns_not_read"]) == {"id", "meta", "messages_old"}
    assert ledger["keys_not_read"] == {"content[].cache": 1, "score": 1}
    again = kit.packed({**config, "out": str(tmp_path / "again")})  # from the cache
    assert again.ledger == packed.ledger
    assert [note for note in again.notes if "not read" in note] == notes


@pytest.mark.parametrize("name", ["texts.parquet", "texts.arrow", "texts.csv"])
def test_of_tables_the_columns_are_listed(tmp_path: Path, name: str) -> None:
    kit.write(tmp_path / name, [{"id": f"{number}", "text": "a b c", "url": "x"} for number in range(50)])
    packed = kit.packed(kit.configure(tmp_path, {"name": "texts", "path": name}))
    assert "source texts: not read: id, url" in packed.notes
    assert packed.ledger["texts"]["columns_not_read"] == {"id": 50, "url": 50}


def test_names_are_few_and_shown_escaped(tmp_path: Path) -> None:
    kit.write(tmp_path / "texts.jsonl", [{"text": "a b c", f"\x1b[31m{'k' * 100}{number}": 1} for number in range(200)])
    packed = kit.packed(
        kit.configure(tmp_path, kit.source("texts"), tokenizer={"path": str(kit.tokenizer(tmp_path / "t"))})
    )
    (note,) = (note for note in packed.notes if "not read" in note)
    assert "\x1b" not in note
    assert len(packed.ledger["texts"]["columns_not_read"]) <= 65
    assert sum(packed.ledger["texts"]["columns_not_read"].values()) == 200
