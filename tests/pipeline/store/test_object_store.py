"""The store on an object store: the promises of a folder, on a server that has bad days.

Legend of faults: see `tests/support/faulty.py`.
"""

import hashlib
import os
import pickle
from pathlib import Path

import pytest
from packtrain.pipeline.store import object_store
from packtrain.pipeline.store.local import SizeAndHash
from packtrain.pipeline.store.object_store import ObjectStore
from packtrain.schemas.dataset.manifest import FileRecord
from packtrain.schemas.errors import ConfigError, StoreError
from packtrain.schemas.files import remote
from packtrain.schemas.fingerprint import hash_bytes

pytest.importorskip("obstore")

from tests.support.faulty import BUCKET, Asked, Faulty

CHUNK = 5 << 20
"""The smallest part that S3 takes."""


@pytest.fixture
def store(faulty: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr(object_store, "CHUNK_BYTES", CHUNK)
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "scratch"))
    return ObjectStore(f"s3://{BUCKET}/{tmp_path.name}")


def content(size: int, seed: bytes = b"") -> bytes:
    return hashlib.shake_128(b"content" + seed).digest(size)


def put(store: ObjectStore, name: str, data: bytes) -> None:
    """Put what can only have one content."""
    with store.draft() as draft:
        draft.file.write(data)
        store.put(draft, name)


def is_put(asked: Asked) -> bool:
    return asked.method in ("PUT", "POST") and "delete" not in asked.path


def drafts(store: ObjectStore) -> list[str]:
    return [path.name for path in store.scratch.root.rglob(".tmp-*")]


# What a folder promises


def test_a_put_creates_and_never_replaces(store: ObjectStore, faulty: Faulty) -> None:
    assert store.put_bytes("a/b/name", b"first")
    assert not store.put_bytes("a/b/name", b"second")
    assert store.put_bytes("a/b/name", b"first")  # an answer may have been lost: what is equal is ours
    assert store.read("a/b/name") == b"first"
    assert (store.exists("a/b/name"), store.size("a/b/name")) == (True, 5)
    assert all(asked.condition for asked in faulty.asked if asked.method == "PUT")


def test_what_is_not_there(store: ObjectStore) -> None:
    assert (store.exists("x"), store.read("x"), store.size("x"), store.hash("x")) == (False, None, None, None)
    assert (store.names(), store.names("y")) == ([], [])
    with pytest.raises(FileNotFoundError):
        store.local("x")
    store.put_bytes("folder/below", b"1")
    assert (store.exists("folder"), store.size("folder"), store.read("folder")) == (False, None, None)
    store.remove("x")


def test_names(store: ObjectStore, faulty: Faulty) -> None:
    for name in ("b", "a/2", "a/1", "a/deep/3"):
        store.put_bytes(name, b"x" * len(name))
    faulty.objects[f"{store.url.rpartition('/')[2]}-neighbour/z"] = b"1"
    assert store.names() == ["a/1", "a/2", "a/deep/3", "b"]
    store.remove("a/1")
    assert store.names("a") == ["a/2", "a/deep/3"]


@pytest.mark.parametrize("size", [0, 5, 2 * CHUNK, pytest.param(3 * CHUNK + 1, marks=pytest.mark.slow)])
def test_a_draft_comes_whole_whatever_its_size(store: ObjectStore, faulty: Faulty, size: int) -> None:
    data = content(size)
    put(store, "big", data)
    assert faulty.objects[f"{store.url.partition(BUCKET + '/')[2]}/big"] == data
    several = [asked for asked in faulty.asked if "partNumber" in asked.path]
    assert len(several) == (-(-size // CHUNK) if size >= 2 * CHUNK else 0)
    expected = SizeAndHash(size, hash_bytes(data))
    assert store.hash("big") == expected
    for path in (store.local("big"), store.local(FileRecord("big", size, expected.hash))):
        assert path.read_bytes() == data
    put(store, "big", content(size, b"damaged"))
    put(store, "big", data)
    assert store.hash("big") == expected
    assert drafts(store) == []


def test_a_store_travels_and_refuses_a_forked_process(store: ObjectStore) -> None:
    """Its client's threads are not in a forked child, which would wait for them forever."""
    store.put_bytes("x", b"1")
    other = pickle.loads(pickle.dumps(store))
    assert (other, hash(other), other.scratch, other.read("x")) == (store, hash(store), store.scratch, b"1")
    assert len(pickle.dumps(store)) < 600, "an address, and nothing that was read"
    child = os.fork()
    if not child:
        try:
            store.read("x")
        except ConfigError as error:
            os._exit(0 if "forkserver" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.read("x") == b"1"


def test_an_object_is_not_read_beyond_its_limit(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_bytes("note", content(3 << 20))
    monkeypatch.setattr(remote, "MAX_READ_BYTES", 3 << 20)
    assert store.read("note") == content(3 << 20)
    monkeypatch.setattr(remote, "MAX_READ_BYTES", (3 << 20) - 1)
    with pytest.raises(StoreError, match="received more than"):
        store.read("note")


def test_a_bucket_that_is_not_there(faulty: Faulty) -> None:
    nowhere = ObjectStore("s3://nowhere/run")
    assert (nowhere.names(), nowhere.read("x"), nowhere.size("x")) == ([], None, None)
    with pytest.raises(StoreError, match="there is no such bucket"):
        nowhere.put_bytes("name", b"1")
    with pytest.raises(StoreError, match="there is no such bucket"):
        put(nowhere, "name", b"1")


# Faults


def test_a_lost_answer_after_a_put_that_succeeded(store: ObjectStore, faulty: Faulty) -> None:
    """The put is repeated, and the name is taken: by ourselves, which the content says."""
    faulty.wanted = is_put
    faulty.faults.extend(["lost"])
    assert store.put_bytes("record", b"ours")
    assert [asked.fault for asked in faulty.asked if is_put(asked)] == ["lost", "ok"]
    assert not store.put_bytes("record", b"somebody else's")
    faulty.faults.extend(["lost"])
    assert not store.put_bytes("record", b"somebody else's")
    assert store.read("record") == b"ours"
    # Of an upload in parts, the last request makes the object; its upload is unknown when it is repeated.
    faulty.wanted = lambda asked: asked.method == "POST" and "uploadId" in asked.path
    faulty.faults.extend(["lost"])
    data = content(2 * CHUNK + 1)
    put(store, "large", data)
    assert store.hash("large") == SizeAndHash(len(data), hash_bytes(data))
    assert not faulty.faults


def test_a_fault_costs_one_part_of_an_upload(store: ObjectStore, faulty: Faulty) -> None:
    faulty.wanted = lambda asked: "partNumber" in asked.path
    faulty.faults.extend(["ok", "503", "lost"])
    put(store, "large", content(3 * CHUNK))
    assert sum(faulty.wanted(asked) for asked in faulty.asked) == 5
    assert store.size("large") == 3 * CHUNK
