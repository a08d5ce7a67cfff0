"""The cache: one download for all readers; no file in use is removed, and no damaged or stale one is returned."""

import errno
import fcntl
import gc
import hashlib
import os
import pickle
import signal
import subprocess
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import IntegrityError, StoreError
from packtrain.schemas.files.user_folder import user_folder
from packtrain.training.shards import cache
from packtrain.training.shards.cache import CachedFile, ShardCache
from packtrain.training.shards.partial_download import PartialDownload, open_partial

from tests.support import warm
from tests.support.examples import examples

SIZE = 10_000


def content(number: int, size: int = SIZE) -> bytes:
    """Distinct bytes for each number."""
    return hashlib.shake_128(str(number).encode()).digest(size)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Origin:
    """Where contents come from; counts how often."""

    def __init__(self, folder: ShardCache, size: int = SIZE) -> None:
        self.cache, self.size = folder, size
        self.downloads: list[int] = []

    def hold(self, number: int) -> CachedFile:
        data = content(number, self.size)

        def download(part: PartialDownload) -> None:
            self.downloads.append(number)
            half = len(data) // 2
            part.write(data[:half])
            part.write(data[half:])

        return self.cache.hold(sha(data), len(data), download)

    def path(self, number: int) -> Path:
        return self.cache.path(sha(content(number, self.size)))


HOLD = """
held = cache.hold(hashlib.sha256(data).hexdigest(), size, download)
say("held")
sys.stdin.read()
"""
SCRIPT = """
import hashlib, os, sys, time
from pathlib import Path
from packtrain.schemas.errors import PacktrainError
from packtrain.training.shards.cache import ShardCache

folder, limit, patience, number = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
size = int(sys.argv[5])
data = hashlib.shake_128(number.encode()).digest(size)
cache = ShardCache(folder, limit, patience=patience)

def say(word):
    print(word, flush=True)

def download(part):
    say("downloading")
    part.write(data[: size // 2])
    if "stop" in sys.argv:
        time.sleep(60)
    part.write(data[size // 2 :])

"""


@contextmanager
def another_process(cache: ShardCache, number: int, *words: str, size: int = SIZE, body: str = HOLD) -> Iterator[Any]:
    """A process that holds a content until its input ends; or does what `body` says."""
    body = (
        body or "held = cache.hold(hashlib.sha256(data).hexdigest(), size, download)\nsay('held')\nsys.stdin.read()\n"
    )
    arguments = [str(cache.folder), str(cache.limit), str(cache.patience), str(number), str(size), *words]
    code = SCRIPT + textwrap.dedent(body)
    process = warm.Process(["python", "-c", code, *arguments], stdin=True, modules=warm.SHARDS)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def said(process: Any, word: str) -> None:
    """Wait for a line."""
    line = process.stdout.readline().strip()
    assert line == word, line


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(ShardCache(tmp_path / "cache", 10 * SIZE, patience=0.2))


def test_a_content_is_downloaded_once_and_named_by_its_hash(origin: Origin) -> None:
    with origin.hold(1) as held:
        assert held.path.read_bytes() == content(1)
        assert held.path.name == sha(content(1))
    with origin.hold(1) as again:
        assert again.path == held.path
    assert origin.downloads == [1]
    assert [path.name for path in held.path.parent.iterdir()] == [held.path.name]  # no part, no lock is left


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    with ShardCache(tmp_path).hold(sha(b""), 0, lambda part: None) as held:
        assert held.path.read_bytes() == b""


@pytest.mark.parametrize("name", ["../../../etc/passwd", "", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_what_is_no_hash_names_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(IntegrityError, match="SHA-256"):
        ShardCache(tmp_path / "cache").hold(name, 1, lambda part: part.write(b"x"))
    assert not (tmp_path / "cache").exists()


def test_a_failed_download_leaves_nothing(origin: Origin) -> None:
    def fail(part: PartialDownload) -> None:
        part.write(b"half")
        raise StoreError("gone")

    with pytest.raises(StoreError, match="gone"):
        origin.cache.hold(sha(content(1)), SIZE, fail)
    assert origin.cache.used() == 0
    origin.hold(1).close()
    assert origin.path(1).read_bytes() == content(1)


def test_a_flipped_bit_is_found_on_first_use_and_fetched_again(origin: Origin) -> None:
    origin.hold(1).close()
    damaged = bytearray(content(1))
    damaged[SIZE // 2] ^= 1
    stamp = origin.path(1).stat()
    origin.path(1).write_bytes(damaged)
    os.utime(origin.path(1), ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    origin.hold(1).close()
    assert origin.downloads == [1]  # this process has checked it already: rot leaves no trace in a file's times
    with another_process(origin.cache, 1) as process:
        said(process, "downloading")
        said(process, "held")
    assert origin.path(1).read_bytes() == content(1)


@pytest.mark.parametrize("damage", [b"", content(2), content(1) + b"x", content(1)[:-1]])
def test_a_file_that_was_changed_is_fetched_again(origin: Origin, damage: bytes) -> None:
    origin.hold(1).close()
    origin.path(1).write_bytes(damage)
    with origin.hold(1) as held:
        assert held.path.read_bytes() == content(1)
    assert origin.downloads == [1, 1]


def test_whoever_maps_a_damaged_file_keeps_it_while_it_is_replaced(origin: Origin) -> None:
    with origin.hold(1) as old, old.path.open("rb") as file:
        old.path.write_bytes(content(2))
        with origin.hold(1) as new:
            assert new.path.read_bytes() == content(1)
            assert file.read() == content(2)


def test_least_recently_used_files_make_room(origin: Origin) -> None:
    for number in range(10):
        origin.hold(number).close()
        time.sleep(0.002)
    origin.hold(0).close()  # used again, so the oldest is 1
    origin.hold(10).close()
    assert not origin.path(1).exists()
    assert all(origin.path(number).exists() for number in (0, *range(2, 11)))
    assert origin.cache.used() == 10 * SIZE


def test_held_files_stay_and_too_many_of_them_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_OWN_PATIENCE", 0.2)
    origin = Origin(ShardCache(tmp_path, 10 * SIZE, patience=100))
    held = [origin.hold(number) for number in range(10)]
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"no room for a file of 10,000 bytes.*may hold 100,000.*raise cache_bytes"):
        origin.hold(10)
    assert time.monotonic() - began < 30  # all of it is held by this process: to wait longer is of little use
    assert all(each.path.exists() for each in held)
    held[3].close()
    origin.hold(10).close()
    assert [number for number in range(11) if not origin.path(number).exists()] == [3]


def test_what_is_forgotten_is_free(origin: Origin) -> None:
    held = [origin.hold(number) for number in range(10)]
    del held[4]
    gc.collect()
    origin.hold(10).close()
    assert not origin.path(4).exists()
    assert all(each.path.exists() for each in held)


def test_room_that_another_thread_gives_back_is_waited_for(tmp_path: Path) -> None:
    origin = Origin(ShardCache(tmp_path, SIZE))
    held = origin.hold(1)
    threading.Timer(0.3, held.close).start()
    with origin.hold(2) as other:
        assert other.path.read_bytes() == content(2)


def test_a_file_larger_than_the_cache_is_refused(tmp_path: Path) -> None:
    origin = Origin(ShardCache(tmp_path, SIZE - 1))
    with pytest.raises(StoreError, match="raise cache_bytes"):
        origin.hold(1)
    assert origin.downloads == []


def test_files_held_by_another_process_stay_until_it_is_killed(tmp_path: Path) -> None:
    origin = Origin(ShardCache(tmp_path, 2 * SIZE, patience=0.2))
    with another_process(origin.cache, 1) as process:
        said(process, "downloading")
        said(process, "held")
        origin.hold(2).close()
        origin.hold(3).close()
        assert origin.path(1).exists()
        assert not origin.path(2).exists()
        with origin.hold(3), pytest.raises(StoreError, match="no room"):
            origin.hold(4)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with origin.hold(3), origin.hold(4):
            assert not origin.path(1).exists()


def test_room_that_another_process_gives_back_is_waited_for(tmp_path: Path) -> None:
    origin = Origin(ShardCache(tmp_path, SIZE, patience=10))
    with another_process(origin.cache, 1) as process:
        said(process, "downloading")
        said(process, "held")
        threading.Timer(0.3, process.stdin.close).start()
        with origin.hold(2) as held:
            assert held.path.read_bytes() == content(2)


def test_after_a_kill_in_mid_download_the_next_one_begins_at_once(origin: Origin) -> None:
    with another_process(origin.cache, 1, "stop") as process:
        said(process, "downloading")
        assert origin.cache.used() == SIZE  # it counts from the beginning
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert origin.cache.used() == SIZE
    began = time.monotonic()
    with origin.hold(1) as held:
        assert held.path.read_bytes() == content(1)
    assert time.monotonic() - began < 50  # what it may not wait for takes 60 s
    assert origin.cache.used() == SIZE


def test_what_a_killed_process_left_goes_when_room_is_made(tmp_path: Path) -> None:
    origin = Origin(ShardCache(tmp_path, SIZE, patience=0.2))
    with another_process(origin.cache, 1, "stop") as process:
        said(process, "downloading")
        with pytest.raises(StoreError, match="no room"):
            origin.hold(2)  # while it is being written, it stays
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    origin.hold(2).close()
    assert origin.cache.used() == SIZE
    assert origin.path(2).exists()


def test_a_fork_does_not_keep_a_killed_download_locked(origin: Origin) -> None:
    body = """
        def download(part):
            part.write(data[: size // 2])
            child = os.fork()
            if not child:
                os.close(0)
                time.sleep(60)
            say(str(child))
            time.sleep(60)
        cache.hold(hashlib.sha256(data).hexdigest(), size, download)
    """
    with another_process(origin.cache, 1, body=body) as process:
        child = int(process.stdout.readline())
        try:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            os.kill(child, 0)
            began = time.monotonic()
            origin.hold(1).close()
            assert time.monotonic() - began < 50  # what it may not wait for takes 60 s
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_fork_may_close_what_its_parent_holds(tmp_path: Path) -> None:
    origin = Origin(ShardCache(tmp_path, SIZE, patience=0.1))
    held = origin.hold(1)
    child = os.fork()
    if not child:
        try:
            held.close()
            os._exit(0 if origin.hold(1).path.read_bytes() == content(1) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(StoreError, match="no room"):
        origin.hold(2)
    held.close()
    origin.hold(2).close()


def test_threads_share_one_download(origin: Origin) -> None:
    gate = threading.Barrier(8)
    paths: list[Path] = []

    def ask() -> None:
        gate.wait()
        with origin.hold(1) as held:
            assert held.path.read_bytes() == content(1)
            paths.append(held.path)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert origin.downloads == [1]


def test_a_file_that_goes_while_it_is_being_locked_is_fetched_again(origin: Origin) -> None:
    origin.hold(1).close()
    with origin.path(1).open("rb") as evicting:
        fcntl.flock(evicting, fcntl.LOCK_EX)
        found: list[CachedFile] = []
        thread = threading.Thread(target=lambda: found.append(origin.hold(1)))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        origin.path(1).unlink()
    thread.join()
    assert found[0].path.read_bytes() == content(1)
    assert origin.downloads == [1, 1]


def test_a_file_that_comes_at_the_last_moment_is_taken(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process publishes after this one has looked, and before it has locked the part."""

    def late(target: Path) -> PartialDownload | None:
        target.parent.mkdir(parents=True)
        target.write_bytes(content(1))
        return open_partial(target)

    monkeypatch.setattr(cache, "open_partial", late)
    with origin.hold(1) as held:
        assert held.path.read_bytes() == content(1)
    assert origin.downloads == []
    assert not list(origin.cache.folder.rglob("*.part"))


def test_nothing_gets_its_name_while_others_count(origin: Origin) -> None:
    """Or a file could be counted twice, or not at all."""
    data, counting = content(1), threading.Event()
    lock = origin.cache.folder / "shards" / "room.lock"

    def download(part: PartialDownload) -> None:
        part.write(data)
        counting.wait()

    thread = threading.Thread(target=lambda: origin.cache.hold(sha(data), SIZE, download).close())
    thread.start()
    while origin.cache.used() == 0:
        time.sleep(0.01)
    with lock.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        counting.set()
        thread.join(0.2)
        assert thread.is_alive()
        assert not origin.path(1).exists()
    thread.join()
    assert origin.path(1).exists()


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=40), st.integers(1, 6))
def test_the_bound_holds_and_so_does_what_is_held(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[int, bool]], room: int
) -> None:
    origin = Origin(ShardCache(tmp_path_factory.mktemp("cache"), room * 1_000, patience=0), size=1_000)
    holding: dict[int, CachedFile] = {}
    for number, keep in moves:
        if number in holding:
            holding.pop(number).close()
        elif len(holding) == room:
            with pytest.raises(StoreError, match="raise cache_bytes"):
                origin.hold(number)
        else:
            held = origin.hold(number)
            assert held.path.read_bytes() == content(number, 1_000)
            if keep:
                holding[number] = held
            else:
                held.close()
        assert origin.cache.used() <= origin.cache.limit
        assert all(each.path.exists() for each in holding.values())
    for each in holding.values():
        each.close()


def test_a_file_too_large_for_the_process_is_an_error_that_says_so(origin: Origin) -> None:
    body = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))
        try:
            cache.hold(hashlib.sha256(data).hexdigest(), size, download)
        except PacktrainError as error:
            say(type(error).__name__ + " " + str(error))
    """
    with another_process(origin.cache, 1, body=body) as process:
        line = process.stdout.readline()
    assert line.startswith("StoreError"), line
    assert "ulimit -f" in line
    assert str(origin.cache.folder) in line
    assert origin.cache.used() == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_on_a_full_disk_files_not_in_use_make_room_and_then_it_is_an_error(small_disk: Path) -> None:
    origin = Origin(ShardCache(small_disk / "cache", 1 << 30), size=300_000)
    first = origin.hold(1)
    for number in (2, 3, 4):
        with origin.hold(number) as held:
            assert held.path.read_bytes() == content(number, 300_000)
    assert first.path.exists()
    assert not origin.path(2).exists()
    keep = [origin.hold(number) for number in (3, 4)]
    with pytest.raises(StoreError, match=rf"the disk that holds the cache {small_disk}.* is full.*PACKTRAIN_CACHE"):
        origin.hold(5)
    assert all(each.path.exists() for each in [first, *keep])
    assert origin.cache.used() == 900_000


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=rf"{tmp_path}/file.*PACKTRAIN_CACHE"):
        Origin(ShardCache(tmp_path / "file")).hold(1)


def test_without_locks_everything_but_sharing_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    origin = Origin(ShardCache(tmp_path, 2 * SIZE, patience=0.1))
    for number in (1, 2, 3, 3):
        with origin.hold(number) as held:
            assert held.path.read_bytes() == content(number)
        time.sleep(0.002)
    assert origin.downloads == [1, 2, 3]
    assert not origin.path(1).exists()
    assert origin.cache.used() == 2 * SIZE


def test_many_processes_in_a_small_cache(tmp_path: Path) -> None:
    """Four processes hold random contents, one at a time, where six fit: every read is right."""
    cache = ShardCache(tmp_path, 6 * SIZE, patience=30)
    body = """
        import random
        rng = random.Random(int(number))
        for _ in range(60):
            data = hashlib.shake_128(str(rng.randrange(12)).encode()).digest(size)
            with cache.hold(hashlib.sha256(data).hexdigest(), size, lambda part: part.write(data)) as held:
                time.sleep(rng.random() / 500)
                assert held.path.read_bytes() == data
                assert cache.used() <= cache.limit, cache.used()
        say("done")
    """
    with (
        another_process(cache, 1, body=body) as a,
        another_process(cache, 2, body=body) as b,
        another_process(cache, 3, body=body) as c,
        another_process(cache, 4, body=body) as d,
    ):
        for process in (a, b, c, d):
            said(process, "done")
    assert cache.used() <= cache.limit
    assert not list(tmp_path.rglob("*.part"))


def test_default_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("PACKTRAIN_CACHE", raising=False)
    assert user_folder() == tmp_path / ".cache" / "packtrain"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert user_folder() == Path("/x/packtrain")
    monkeypatch.setenv("PACKTRAIN_CACHE", "~/fast")
    assert ShardCache().folder == tmp_path / "fast"
    assert ShardCache("/given").folder == Path("/given")


def test_a_cache_pickles_as_its_arguments(tmp_path: Path) -> None:
    copy = pickle.loads(pickle.dumps(ShardCache(tmp_path, 5, patience=2)))
    assert (copy.folder, copy.limit, copy.patience) == (tmp_path, 5, 2)
