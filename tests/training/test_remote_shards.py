"""Remote shards on bad days: every fault ends in the batches of the folder, or in an error that names file and fix."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.errors import ConfigError, InputError, IntegrityError, StalledError, StoreError
from packtrain.schemas.files import remote, remote_clients
from packtrain.training import PackedLoader, prefetch
from packtrain.training.packed_rows import PackedRows

from tests import kit
from tests.support import warm
from tests.support.faulty import Faulty

PIECE = 32 << 10
OPTIONS: dict[str, Any] = {"rows_per_step": 4, "rank": 0, "world_size": 1}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a shard comes in several pieces, and failures pass quickly."""
    monkeypatch.setattr(remote, "CHUNK_BYTES", PIECE)
    monkeypatch.setattr(remote, "FIRST_PAUSE_SECONDS", 0.005)
    monkeypatch.setattr(remote_clients, "FIRST_PAUSE_SECONDS", 0.005)


@pytest.fixture
def store(folder: Path) -> Iterator[Faulty]:
    """A server with a copy of the dataset under /bucket/data."""
    with Faulty() as opened:
        files = [path for path in folder.rglob("*") if path.is_file() and "_run" not in path.parts]
        opened.buckets["bucket"] = {f"data/{path.relative_to(folder)}": path.read_bytes() for path in files}
        yield opened


def where(store: Faulty) -> str:
    return f"{store.address}/bucket/data"


def shards(folder: Path) -> list[dict[str, Any]]:
    return kit.Packed(folder).record["splits"]["train"]["shards"]  # type: ignore[no-any-return]


def requests(store: Faulty, name: str) -> int:
    """How often a file was asked for."""
    return sum(each.path.endswith(name) for each in list(store.asked))


def cached(cache: Path) -> dict[str, int]:
    """Names and sizes of the files of a cache."""
    return {path.name: path.stat().st_size for path in cache.rglob("*") if path.is_file()}


def soon(settled: Callable[[], bool]) -> None:
    """Wait for those who fetch ahead, which may still be at it."""
    until = time.monotonic() + 120
    while not settled():
        assert time.monotonic() < until
        time.sleep(0.05)


def ids(loader: PackedLoader) -> list[list[int]]:
    return [batch["input_ids"][0].tolist() for batch in loader]


def test_without_faults_every_byte_is_asked_for_once(store: Faulty, folder: Path, tmp_path: Path) -> None:
    loader = PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache", epochs=2)
    assert ids(loader) == ids(PackedLoader(folder, **OPTIONS, epochs=2))
    for shard in shards(folder):
        assert requests(store, shard["name"]) == 1
    assert set(cached(tmp_path / "cache")) >= {shard["hash"] for shard in shards(folder)}
    asked = len(store.asked)
    again = PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache")
    assert ids(again) == ids(PackedLoader(folder, **OPTIONS))
    assert {each.path.rpartition("/")[2] for each in store.asked[asked:]} == {"manifest.json"}
    assert again.explain(1) == PackedLoader(folder, **OPTIONS).explain(1)


def test_faults_that_pass_end_in_the_right_batches(store: Faulty, folder: Path, tmp_path: Path) -> None:
    loader = PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache")
    faults = ["503", "429", "cut", "whole", "reset", "flip", "gzip", "short"]
    store.faults.extend(faults)
    assert ids(loader) == ids(PackedLoader(folder, **OPTIONS))
    assert {each.fault for each in store.asked} == {*faults, "ok"}


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("cut", StoreError, "failed 2 times in a row.*resume"),
        ("reset", StoreError, "failed 2 times in a row.*resume"),
        ("404", InputError, "copied incompletely"),
        ("403", StoreError, "the store refuses .*; give credentials"),
        ("400", StoreError, "cannot be read or written"),
    ],
)
def test_a_fault_that_stays_is_an_error(
    store: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, error: type[Exception], message: str
) -> None:
    """What may pass is asked for again, and what will not is said at once."""
    monkeypatch.setattr(remote, "MAX_ATTEMPTS", 2)
    loader = PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache", prefetch=0)
    asked, store.always = len(store.asked), fault
    with pytest.raises(error, match=message) as caught:
        next(iter(loader))
    assert where(store) in str(caught.value)
    times = Counter(each.path for each in store.asked[asked:])
    assert "times in a row" in message or max(times.values()) <= 2, "by the batch, and by who fetches ahead"
    with pytest.raises((InputError, StoreError), match=r"manifest\.json"):
        PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache")
    soon(lambda: not [name for name in cached(tmp_path / "cache") if name.endswith(".tmp")])


@pytest.mark.parametrize("damage", ["flip", "cut", "longer"])
def test_a_file_that_is_not_what_its_manifest_says(
    store: Faulty, folder: Path, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MAX_ATTEMPTS", 2)
    objects, name = store.buckets["bucket"], f"data/{shards(folder)[0]['name']}"
    data = objects[name]
    objects[name] = {"flip": data[:-1] + bytes([data[-1] ^ 128]), "cut": data[:-5], "longer": data + b"more"}[damage]
    loader = PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache", order="sequential")
    if damage == "longer":
        assert ids(loader) == ids(PackedLoader(folder, **OPTIONS, order="sequential"))
        return
    with pytest.raises((IntegrityError, StoreError), match=rf"{name}.*(copy the dataset|put it) there again"):
        next(iter(loader))
    assert shards(folder)[0]["hash"] not in cached(tmp_path / "cache")


class Endless(BaseHTTPRequestHandler):
    """Sends the files of a folder, but without end, and knows no ranges."""

    protocol_version = "HTTP/1.1"
    folder: Path
    endless: str
    sent = 0

    def do_GET(self) -> None:
        self.send_response(200)
        path = self.folder / self.path.lstrip("/")
        if not self.path.endswith(self.endless):
            data = path.read_bytes()
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
                type(self).sent += 1 << 16
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("endless", ["manifest.json", ".arrow"])
def test_an_endless_body_ends(folder: Path, tmp_path: Path, endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_ATTEMPTS", 2)
    monkeypatch.setattr(remote, "MAX_READ_BYTES", 4 << 20)
    handler = type("Handler", (Endless,), {"folder": folder, "endless": endless, "sent": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        with pytest.raises((StoreError, IntegrityError), match=r"received more than the|is damaged"):
            next(iter(PackedLoader(address, **OPTIONS, cache=tmp_path / "cache")))
    finally:
        server.shutdown()
        server.server_close()
    assert 0 < handler.sent < 1 << 30  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_store_that_hangs_is_reported_and_given_up(
    store: Faulty, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "REPORT_AFTER_SECONDS", 0.01)
    monkeypatch.setattr(prefetch, "GIVE_UP_AFTER_SECONDS", 3.0)
    options = {**OPTIONS, "world_size": 2, "rank": 1}
    loader = PackedLoader(where(store), **options, cache=tmp_path / "cache", order="sequential")
    store.always = "hang"
    with pytest.raises(StalledError) as caught:
        next(iter(loader))
    first = f"{where(store)}/{shards(folder)[0]['name']}"
    assert f"rank 1 of 2 waits for step 0, whose rows are in {first}" in str(caught.value)
    assert "gave up after" in str(caught.value)
    assert any("by now" in record.getMessage() for record in caplog.records)


@pytest.mark.slow
def test_a_process_whose_store_hangs_ends(store: Faulty, tmp_path: Path) -> None:
    """Its threads still wait when it has given up."""
    program = """
import sys
from packtrain.training import PackedLoader, prefetch
from packtrain.training.packed_rows import PackedRows
prefetch.GIVE_UP_AFTER_SECONDS = 0.5
loader = PackedLoader(sys.argv[1], rows_per_step=4, cache=sys.argv[2])
print("made", flush=True)
sys.stdin.readline()
next(iter(loader))
"""
    words = [sys.executable, "-c", program, where(store), str(tmp_path / "cache")]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    store.always = "hang"
    _, said = process.communicate("\n", timeout=300)
    assert process.returncode == 1
    assert "StalledError" in said
    assert not store.released.is_set()


def test_an_address_keeps_its_secrets_to_itself(store: Faulty, tmp_path: Path) -> None:
    signed = f"{where(store)}?signature=secret"
    loader = PackedLoader(signed, **OPTIONS, cache=tmp_path / "cache", prefetch=0)
    store.always = "403"
    with pytest.raises(StoreError) as caught:
        next(iter(loader))
    assert "secret" not in str(caught.value)
    for address in ("nothing://bucket", "ftp://person:secret@127.0.0.1:1/folder"):
        with pytest.raises((ConfigError, OSError)) as failed:
            PackedLoader(address, **OPTIONS)
        assert "secret" not in str(failed.value)
    with pytest.raises(ConfigError, match="cache_bytes=0"):
        PackedLoader(where(store), **OPTIONS, cache_bytes=0)


# The cache.


def test_a_cache_smaller_than_the_dataset_stays_within_its_bound(store: Faulty, folder: Path, tmp_path: Path) -> None:
    """With a third of the requests failing."""
    largest = max(shard["bytes"] for shard in shards(folder))
    assert len(shards(folder)) >= 3
    options = {**OPTIONS, "epochs": 3, "seed": 5}
    there = PackedLoader(where(store), **options, cache=tmp_path / "cache", cache_bytes=2 * largest + 100)
    store.rate, store.kinds = 0.33, ("503", "500", "cut", "reset", "short", "429")
    assert ids(there) == ids(PackedLoader(folder, **options))
    soon(lambda: sum(cached(tmp_path / "cache").values()) <= 2 * largest + 100)
    assert sum(each.fault != "ok" for each in store.asked) > 5
    store.rate = 0
    with pytest.raises(StoreError, match="raise cache_bytes"):
        next(iter(PackedLoader(where(store), **options, cache=tmp_path / "cache", cache_bytes=1000)))


def test_a_cache_without_a_limit_keeps_all_shards(folder: Path, store: Faulty, tmp_path: Path) -> None:
    rows = PackedRows(where(store), cache=tmp_path / "cache", cache_bytes=None)
    expected = PackedRows(folder)
    assert [rows.row(row).input_ids.tolist() for row in range(len(rows))] == [
        expected.row(row).input_ids.tolist() for row in range(len(expected))
    ]
    assert {shard["hash"] for shard in shards(folder)} <= set(cached(tmp_path / "cache"))


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_file_of_the_cache_is_fetched_again(
    store: Faulty, folder: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = ids(PackedLoader(folder, **OPTIONS))
    assert ids(PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache")) == expected
    shard = shards(folder)[0]
    path = tmp_path / "cache" / "copies" / shard["hash"][:2] / shard["hash"]
    data = bytearray(path.read_bytes())
    data[777] ^= 1
    path.unlink()
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:100]), "empty": b""}[damage])
    asked = requests(store, shard["name"])
    assert ids(PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache")) == expected
    assert requests(store, shard["name"]) == asked + 1
    assert f"{path} is damaged" in caplog.text


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_in_the_cache_is_an_error(store: Faulty, folder: Path, tmp_path: Path, kind: str) -> None:
    shard = shards(folder)[0]
    path = tmp_path / "cache" / "copies" / shard["hash"][:2] / shard["hash"]
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(folder / shard["name"])
    else:
        path.mkdir()
    loader = PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache", order="sequential")
    with pytest.raises(IntegrityError, match=rf"{path} is (not a regular file|a link)"):
        next(iter(loader))


def test_readers_share_one_download(store: Faulty, folder: Path, tmp_path: Path) -> None:
    """In threads, whose locks exclude each other as those of processes do."""
    expected = sum(map(sum, ids(PackedLoader(folder, **OPTIONS))))
    store.latency = 0.05
    with ThreadPoolExecutor(3) as pool:
        loaders = [PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache") for _ in range(3)]
        assert [sum(map(sum, one)) for one in pool.map(ids, loaders)] == [expected] * 3
    for shard in shards(folder):
        assert requests(store, shard["name"]) == 1


def test_after_a_kill_in_mid_download_another_process_goes_on(store: Faulty, folder: Path, tmp_path: Path) -> None:
    program = f"""
from packtrain.training import PackedLoader
loader = PackedLoader({where(store)!r}, rows_per_step=4, cache={str(tmp_path / "cache")!r})
print("made", flush=True)
input()
next(iter(loader))
"""
    victim = warm.Process(["python", "-c", program], stdin=True, modules=warm.TRAINING)
    assert victim.stdout.readline() == "made\n"
    asked, store.always = len(store.asked), "hang"
    victim.stdin.write("\n")
    victim.stdin.flush()
    soon(lambda: len(store.asked) > asked)
    assert [name for name in cached(tmp_path / "cache") if name.endswith(".tmp")]
    store.always = None
    victim.kill()
    victim.wait()
    found = ids(PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache", order="sequential"))
    assert found == ids(PackedLoader(folder, **OPTIONS, order="sequential"))
    assert not [name for name in cached(tmp_path / "cache") if name.endswith(".tmp")]


def test_a_cache_that_cannot_be_made_is_named(store: Faulty, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(StoreError, match=rf"the cache {tmp_path}/cache cannot be used.*PACKTRAIN_CACHE"):
        next(iter(PackedLoader(where(store), **OPTIONS, cache=tmp_path / "cache")))


# Other stores.


def test_a_file_system_without_an_event_loop(folder: Path, tmp_path: Path) -> None:
    memory = import_module("fsspec").filesystem("memory")
    for path in folder.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/shelf/{path.relative_to(folder)}", path.read_bytes())
    assert ids(PackedLoader("memory://shelf", **OPTIONS, cache=tmp_path)) == ids(PackedLoader(folder, **OPTIONS))
    for shard in shards(folder):
        memory.rm(f"/shelf/{shard['name']}")
    with pytest.raises(InputError, match=r"there is no memory://shelf/.*copied incompletely"):
        next(iter(PackedLoader("memory://shelf", **OPTIONS, cache=tmp_path / "other")))


def test_a_folder_is_used_as_it_is(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "data set"
    shutil.copytree(folder, place)
    for address in (str(place), f"file://{place}", place.as_uri(), f"local://{place}"):
        loader = PackedLoader(address, **OPTIONS, cache=tmp_path / "cache")
        assert ids(loader) == ids(PackedLoader(folder, **OPTIONS)), address
    assert not (tmp_path / "cache").exists()
