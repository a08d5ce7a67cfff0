"""A cache that several streams share: each block encoded once, no stream blocked by a dead one, and a size limit that
holds."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.store.cache_bound import PartCacheBudget
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.stream.shared_encoding import Lock
from packtrain.pipeline.stream.stream import LiveWindows
from packtrain.schemas.errors import ConfigError

from tests.support import warm


def test_a_lock_has_one_holder_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "a"
    one, other = Lock(path), Lock(path)
    assert one.take()
    assert not other.take()
    one.release()
    assert not path.exists()
    assert other.take()
    assert not one.take()
    other.release()
    assert not list(path.parent.iterdir())


HOLDER = """
import sys, time
from pathlib import Path
from packtrain.pipeline.stream.shared_encoding import Lock
assert Lock(Path(sys.argv[1])).take()
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_is_freed_when_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with warm.Process(["python", "-c", HOLDER, path]) as holder:
        assert holder.stdout.readline() == "held\n"
        lock = Lock(path)
        assert not lock.take()
        holder.kill()
        holder.wait()
        assert lock.take()
        lock.release()


# Says how many bytes this process encoded itself, block by block, and a digest of the rows it was given.
WALKER = """
import hashlib, json, signal, sys
from packtrain.pipeline.stream.stream import LiveWindows
from packtrain.pipeline.observer import Silent

class Counting(Silent):
    encoded = []
    def advance(self, done, rows=0, tokens=0):
        self.encoded.append(done)
        print("encoded", flush=True)

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
config, window_bytes = json.loads(sys.argv[1]), int(sys.argv[2])
windows = LiveWindows(config, window_bytes=window_bytes, workers=1, observer=Counting())
print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
digest = hashlib.sha256()
for window in windows.walk(0, 0, 1):
    digest.update(str(window.lay_out(0, window.rows).to_pydict()).encode())
windows.close()
print(json.dumps({"encoded": Counting.encoded, "digest": digest.hexdigest()}), flush=True)
"""


def start_walker(config: dict[str, Any], window_bytes: int) -> warm.Process:
    """A process that has everything ready and waits for a signal to begin."""
    walker = warm.Process(["python", "-c", WALKER, json.dumps(config), window_bytes])
    assert walker.stdout.readline() == "ready\n"
    return walker


def begin(walker: warm.Process) -> None:
    """Let it begin."""
    walker.send_signal(signal.SIGUSR1)


def finish(walker: warm.Process) -> dict[str, Any]:
    """What it says at the end."""
    out, _ = walker.communicate(timeout=600)
    assert walker.returncode == 0
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    return said


@pytest.fixture
def many_blocks(tmp_path: Path, new_cache: Callable[[], Path], tiny_tokenizer: Path) -> dict[str, Any]:
    """A configuration of 24 blocks that take a while, and a cache that holds none of them."""
    paths = []
    for number in range(24):
        paths.append(tmp_path / f"{number}.jsonl")
        lines = [json.dumps({"text": f"{number} {i} " + "some words and more " * 40}) for i in range(100)]
        paths[-1].write_text("\n".join(lines) + "\n")
    return {
        "out": str(tmp_path / "data"),
        "cache": str(new_cache()),
        "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
        "sources": [{"name": "texts", "format": "text", "path": [str(path) for path in paths]}],
        "truncate": {"max_length": 256},
    }


@pytest.mark.slow
def test_two_processes_encode_each_block_once(many_blocks: dict[str, Any]) -> None:
    walkers = [start_walker(many_blocks, 500_000) for _ in range(2)]
    for walker in walkers:
        begin(walker)
    said = [finish(walker) for walker in walkers]
    sizes = sorted(path.stat().st_size for path in map(Path, many_blocks["sources"][0]["path"]))
    assert sorted(said[0]["encoded"] + said[1]["encoded"]) == sizes
    assert all(one["encoded"] for one in said), "one of them did it all: they did not share"
    assert said[0]["digest"] == said[1]["digest"]
    parts = list((Path(many_blocks["cache"]) / "encoded").rglob("*.arrow"))
    assert len(parts) == len(sizes)
    assert not list((Path(many_blocks["cache"]) / "locks").iterdir())


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_encodes_holds_nobody_up(many_blocks: dict[str, Any]) -> None:
    victim, other = (start_walker(many_blocks, 10**9) for _ in range(2))
    begin(victim)
    assert victim.stdout.readline() == "encoded\n"
    assert list((Path(many_blocks["cache"]) / "locks").iterdir())
    victim.kill()
    victim.communicate()
    begin(other)
    said = finish(other)
    assert 0 < len(said["encoded"]) < 24
    again = start_walker(many_blocks, 10**9)
    begin(again)
    assert finish(again) == {"encoded": [], "digest": said["digest"]}


def encoded_bytes(cache: Path) -> int:
    """Bytes of encoded parts."""
    return sum(path.stat().st_size for path in (cache / "encoded").rglob("*.arrow"))


@pytest.mark.slow
def test_a_bounded_cache_keeps_its_bound_and_changes_no_row(many_blocks: dict[str, Any]) -> None:
    cache = Path(many_blocks["cache"])
    window = 2 * max(Path(path).stat().st_size for path in many_blocks["sources"][0]["path"]) + 99
    limit = 4 * window
    rows, sizes = [], []
    bounded = LiveWindows(many_blocks, window_bytes=window, workers=0, cache_bytes=limit)
    try:
        for one in bounded.walk(0, 0, 2):
            rows.append(one.lay_out(0, one.rows).to_pydict())
            sizes.append(encoded_bytes(cache))
            assert len(one.documents(0, one.rows)) == one.certificate.pieces
    finally:
        bounded.close()
    with pytest.raises(ConfigError, match=f"give at least {limit:,}"):
        LiveWindows(many_blocks, window_bytes=window, workers=0, cache_bytes=limit - 1)
    whole = LiveWindows(many_blocks, window_bytes=window, workers=0)
    try:
        assert [one.lay_out(0, one.rows).to_pydict() for one in whole.walk(0, 0, 2)] == rows
    finally:
        whole.close()
    assert len(rows) == 24
    everything = encoded_bytes(cache)
    assert max(sizes) < limit + everything / 12 < everything  # room is made before a window is encoded


def test_a_part_that_is_held_is_not_removed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    paths = []
    for number in range(4):
        key = f"{number:064x}"
        paths.append(store.path(f"encoded/00/{key}-abc.arrow"))
        store.put_bytes(f"encoded/00/{key}-abc.arrow", b"x" * 100)
        store.put_bytes(f"encoded/00/{key}.json", b"{}")
    mine, theirs = PartCacheBudget(store, 250), PartCacheBudget(store, 250)
    held = mine.hold(paths[:1])
    assert held is not None
    theirs.make()
    assert [path.exists() for path in paths] == [True, False, False, True]  # the one held, and the newest
    assert len(list(store.path("encoded").rglob("*.json"))) == 2
    assert theirs.hold(paths[:2]) is None
    held.release()
    PartCacheBudget(store, 0).make()
    assert not list(store.path("encoded").rglob("*.*"))
    PartCacheBudget(store, None).make()
