"""The store: a name appears with all its bytes, or not at all."""

import os
from pathlib import Path

import pytest
from packtrain.pipeline.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def left(store: LocalStore) -> list[str]:
    """Temporary files."""
    return [path.name for path in store.root.rglob(".tmp-*")]


def test_a_put_creates_and_never_replaces(store: LocalStore) -> None:
    assert store.put_bytes("a/b/name", b"first")
    assert not store.put_bytes("a/b/name", b"second")
    assert store.read("a/b/name") == b"first"
    assert (store.exists("a/b/name"), store.size("a/b/name")) == (True, 5)
    assert left(store) == []


def test_bytes_are_on_the_disk_before_their_name_and_the_name_before_the_put_returns(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    link = os.link

    def synced(descriptor: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        done.append("sync folder" if place.is_dir() else f"sync {place.stat().st_size} bytes")

    def linked(source: Path, target: Path) -> None:
        link(source, target)
        done.append(f"link {target.name}")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    store.put_bytes("a/name", b"first")
    assert done == ["sync 5 bytes", "link name", "sync folder"]
