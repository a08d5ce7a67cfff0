"""The store: a name appears with all its bytes, or not at all."""

import multiprocessing
import os
from pathlib import Path

import pyarrow as pa
import pytest
from packtrain.pipeline.store.local import LocalStore, hash_file
from packtrain.pipeline.store.store import Put
from packtrain.schemas.errors import StoreError
from packtrain.schemas.fingerprint import hash_bytes

from tests.support import warm


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


def test_what_is_not_there(store: LocalStore) -> None:
    assert not store.exists("x")
    assert (store.read("x"), store.size("x"), store.names(), store.names("y")) == (None, None, [], [])
    store.put_bytes("file", b"")
    with pytest.raises(StoreError):
        store.read("file/below")


def test_an_error_in_the_middle_leaves_nothing(store: LocalStore) -> None:
    schema = pa.schema([("x", pa.int64())])

    def write() -> None:
        # The writer finishes a readable file on the way out; the store must not let it have a name.
        with store.draft("") as draft, pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), schema) as writer:
            writer.write_batch(pa.record_batch([[1]], schema=schema))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert (store.names(), left(store)) == ([], [])


def test_the_hash_is_of_what_was_handed_over(store: LocalStore) -> None:
    with store.draft("") as draft:
        for piece in (b"one", memoryview(b"two"), b"", memoryview(pa.array([1, 2, 3]).buffers()[1])[:24]):
            draft.file.write(piece)
        expected = b"onetwo" + pa.array([1, 2, 3]).buffers()[1].to_pybytes()[:24]
        assert draft.result == Put(len(expected), hash_bytes(expected))
        assert draft.file.tell() == len(expected)
        assert store.put(draft, "name")
    assert hash_file(store.path("name")) == Put(len(expected), hash_bytes(expected))


@pytest.mark.parametrize("damage", [b"hellO", b"hell", b""])
def test_a_damaged_file_is_replaced_where_only_one_content_can_be(store: LocalStore, damage: bytes) -> None:
    store.put_bytes("name", damage)
    with store.draft("") as draft:
        draft.file.write(b"hello")
        assert not store.put(draft, "name")
        assert store.read("name") == damage
        assert store.put(draft, "name", replace_damaged=True)
    assert store.read("name") == b"hello"
    with store.draft("") as draft:
        draft.file.write(b"hello")
        assert not store.put(draft, "name", replace_damaged=True)
    assert left(store) == []


@pytest.mark.parametrize("other", ["fifo", "loop", "huge"])
def test_what_stands_in_the_place_of_a_file_is_replaced_unread(store: LocalStore, other: str) -> None:
    path = store.path("name")
    path.parent.mkdir(parents=True, exist_ok=True)
    if other == "fifo":
        os.mkfifo(path)
    elif other == "loop":
        path.symlink_to(path.name)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(StoreError):
        store.read("name")
    with store.draft("") as draft:
        draft.file.write(b"hello")
        assert store.put(draft, "name", replace_damaged=True)
    assert store.read("name") == b"hello"


def _race(root: Path, number: int) -> bool:
    return LocalStore(root).put_bytes("same/name", b"%d" % number * 1000)


def test_of_many_writers_one_wins(store: LocalStore) -> None:
    with multiprocessing.get_context("forkserver").Pool(4) as pool:
        won = pool.starmap(_race, [(store.root, number) for number in range(40)])
        # A worker that is terminated while it waits for the queue's lock may never end.
        pool.close()
        pool.join()
    assert sum(won) == 1
    assert store.read("same/name") == b"%d" % won.index(True) * 1000


def test_a_kill_leaves_no_name_and_the_sweep_removes_the_rest(store: LocalStore) -> None:
    code = (
        "import sys; from pathlib import Path; from packtrain.pipeline.store.local import LocalStore\n"
        "with LocalStore(Path(sys.argv[1])).draft('deep/er') as draft:\n"
        "    draft.file.write(b'half'); print(flush=True); sys.stdin.read()"
    )
    writer = warm.Process(["python", "-c", code, store.root], stdin=True)
    writer.stdout.readline()
    store.sweep()
    assert len(left(store)) == 1, "a draft of a living process was taken away"
    writer.kill()
    writer.communicate()
    assert (store.names(), len(left(store))) == ([], 1)
    store.path("deep/.tmp-another.machine-1-abcd").touch()
    store.path("deep/.tmp-what").touch()
    store.sweep()
    assert sorted(left(store)) == [".tmp-another.machine-1-abcd", ".tmp-what"]
