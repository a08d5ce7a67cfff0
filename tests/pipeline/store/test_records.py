"""Records of files: a file counts only with a record of what it holds, and a record only with its file."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from packtrain.pipeline.observer import Observer
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.records import Records
from packtrain.schemas.dataset.manifest import FileRecord
from packtrain.schemas.fingerprint import hash_bytes


@dataclass(frozen=True)
class Record:
    file: FileRecord


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """With a file and its record."""
    store = LocalStore(tmp_path)
    store.put_bytes("file", b"content")
    Records(store, Record).add("record", Record(FileRecord("file", 7, hash_bytes(b"content"))))
    return store


def test_a_file_of_another_size_has_no_record(store: LocalStore) -> None:
    records = Records(store, Record)
    assert [*records.find_all(["record", "other"])] == ["record"]
    store.path("file").write_bytes(b"conten")
    assert records.find("record") is None
    store.remove("file")
    assert records.find("record") is None


@pytest.mark.parametrize(("content", "wrong"), [(b"c0ntent", ()), (b"content", ("file",))])
def test_a_damaged_file_loses_its_record(store: LocalStore, content: bytes, wrong: tuple[str, ...]) -> None:
    assert Records(store, Record).find_intact(["record"], Observer())
    store.path("file").write_bytes(content)
    assert Records(store, Record).find_intact(["record"], Observer(), wrong) == {}
    assert not store.exists("record")
