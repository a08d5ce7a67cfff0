"""Object stores on bad days: every fault ends in the right bytes or in an error that names the file and the fix."""

import gc
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.errors import InputError, IntegrityError, PacktrainError, StoreError
from packtrain.schemas.files import remote
from packtrain.training.shards.shard_files import RemoteShardFiles, open_shard_files

pytest.importorskip("aiohttp")

from tests.bench.loopback import Store
from tests.support import warm

PIECE = 32 << 10
NAME = "shards/00000-abc.arrow"
DATA = hashlib.shake_128(b"shard").digest(10 * PIECE + 123)
SHA = hashlib.sha256(DATA).hexdigest()
NO_KEYS: dict[str, Any] = {"key": "a", "secret": "b"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    folder = tmp_path / "bucket" / "data"
    (folder / "shards").mkdir(parents=True)
    (folder / NAME).write_bytes(DATA)
    (folder / "manifest.json").write_bytes(b'{"a": 1}')
    with Store(tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PIECE", PIECE)
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.005)


@pytest.fixture(params=["http", pytest.param("s3", marks=pytest.mark.slow)])
def shelf(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> RemoteShardFiles:
    """The same files over HTTP and as an S3 bucket."""
    return make_shelf(store, tmp_path / "cache", request.param)


def make_shelf(store: Store, cache: Path, kind: str = "http", **arguments: Any) -> RemoteShardFiles:
    where, options = f"{store.address}/bucket/data", None
    if kind == "s3":
        pytest.importorskip("s3fs")
        # botocore's own attempts would hide from these tests what ours do
        retries = {"retries": {"max_attempts": 0}}
        where, options = "s3://bucket/data", {**NO_KEYS, "endpoint_url": store.address, "config_kwargs": retries}
    arguments = {"attempts": 4, "request_seconds": 10.0, **arguments}
    opened = open_shard_files(where, cache=cache, storage_options=options, **arguments)
    assert isinstance(opened, RemoteShardFiles)
    return opened


def test_without_faults_every_byte_is_asked_for_once(store: Store, shelf: RemoteShardFiles) -> None:
    with shelf.hold(NAME, len(DATA), SHA) as held:
        assert held.path.read_bytes() == DATA
    ranges = sorted((each.begin, each.end) for each in store.asked)
    assert len(ranges) == 11
    assert ranges[0][0] == 0
    assert ranges[-1][1] == len(DATA)
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    shelf.hold(NAME, len(DATA), SHA).close()
    assert len(store.asked) == 11
    assert shelf.read("manifest.json") == b'{"a": 1}'
    assert shelf.busy() == []


@pytest.mark.parametrize("fault", ["500", "503", "429", "cut", "reset", "flip", "short", "hang"])
def test_a_fault_that_passes_ends_in_the_right_bytes(store: Store, shelf: RemoteShardFiles, fault: str) -> None:
    if fault == "hang":
        shelf.read("manifest.json")  # to open a client takes longer
        shelf.remote.request_seconds = 0.4
    store.faults.extend(["ok", "ok", "ok", fault, "ok", "ok", fault])
    with shelf.hold(NAME, len(DATA), SHA) as held:
        assert held.path.read_bytes() == DATA
    assert sum(each.fault == fault for each in store.asked) == 2
    if fault not in ("flip", "hang"):  # a bit is found at the end; a hang may take its neighbours with it
        assert store.bytes_asked(NAME) <= len(DATA) + 2 * PIECE


@pytest.mark.parametrize("fault", ["503", "cut", "reset", "hang"])
def test_a_small_file_is_tried_again_too(store: Store, shelf: RemoteShardFiles, fault: str) -> None:
    if fault == "hang":
        shelf.read("manifest.json")  # to open a client takes longer
        shelf.remote.request_seconds = 0.4
    store.faults.extend([fault, "ok", fault])
    assert shelf.read("manifest.json") == b'{"a": 1}'


@pytest.mark.parametrize("fault", ["500", "503", "cut", "reset", "hang"])
def test_a_fault_that_stays_is_a_store_error(store: Store, shelf: RemoteShardFiles, fault: str) -> None:
    store.always = fault
    shelf.remote.attempts, shelf.remote.request_seconds = 2, 0.3  # s3fs's own attempts would take longer
    with pytest.raises(StoreError, match=rf"{shelf.url(NAME)} failed 2 times in a row.*resume"):
        shelf.hold(NAME, len(DATA), SHA)
    with pytest.raises(StoreError, match=r"manifest\.json failed 2 times"):
        shelf.read("manifest.json")
    assert shelf.cache.used() == 0
    assert shelf.busy() == []
    store.always, shelf.remote.request_seconds = None, 10.0
    with shelf.hold(NAME, len(DATA), SHA) as held:
        assert held.path.read_bytes() == DATA


def test_bits_that_stay_flipped_are_an_integrity_error(store: Store, shelf: RemoteShardFiles, tmp_path: Path) -> None:
    damaged = bytearray(DATA)
    damaged[-1] ^= 128
    (tmp_path / "bucket" / "data" / NAME).write_bytes(damaged)
    found = hashlib.sha256(damaged).hexdigest()
    with pytest.raises(IntegrityError, match=rf"{shelf.url(NAME)}.*{SHA}.*4 attempts.*{found}.*copy the dataset"):
        shelf.hold(NAME, len(DATA), SHA)
    assert store.bytes_asked(NAME) == 4 * len(DATA)
    assert shelf.cache.used() == 0


@pytest.mark.parametrize("length", [0, 5, PIECE, 3 * PIECE + 1, len(DATA) - 1])
def test_a_file_that_was_cut_is_an_integrity_error(shelf: RemoteShardFiles, tmp_path: Path, length: int) -> None:
    (tmp_path / "bucket" / "data" / NAME).write_bytes(DATA[:length])
    with pytest.raises(IntegrityError, match=rf"{shelf.url(NAME)} has another length.*copy the dataset"):
        shelf.hold(NAME, len(DATA), SHA)


def test_what_was_appended_does_no_harm(shelf: RemoteShardFiles, tmp_path: Path) -> None:
    (tmp_path / "bucket" / "data" / NAME).write_bytes(DATA + b"more")
    with shelf.hold(NAME, len(DATA), SHA) as held:
        assert held.path.read_bytes() == DATA


@pytest.mark.parametrize(("fault", "fix"), [("404", "copied incompletely"), ("403", "storage_options")])
def test_what_will_not_pass_is_said_at_once(store: Store, shelf: RemoteShardFiles, fault: str, fix: str) -> None:
    store.always = fault
    with pytest.raises(InputError, match=rf"{shelf.url(NAME)}.*{fix}"):
        shelf.hold(NAME, len(DATA), SHA)
    assert len(store.asked) == 1
    expected: type[Exception] = FileNotFoundError if fault == "404" else InputError
    with pytest.raises(expected, match=shelf.url("manifest.json")):
        shelf.read("manifest.json")


def test_a_request_that_no_repetition_mends(store: Store, shelf: RemoteShardFiles) -> None:
    store.always = "400"
    with pytest.raises(StoreError, match=rf"{shelf.url(NAME)} cannot be read or written"):
        shelf.hold(NAME, len(DATA), SHA)
    assert len(store.asked) == 1


def test_nobody_listens(store: Store, tmp_path: Path) -> None:
    shelf = make_shelf(store, tmp_path / "cache", attempts=2)
    shelf.remote.url = "http://127.0.0.1:9/bucket"
    shelf.remote._opened.clear()
    with pytest.raises(StoreError, match=r"http://127.0.0.1:9/bucket/manifest.json failed 2 times.*can be reached"):
        shelf.read("manifest.json")


def test_a_server_that_knows_no_ranges(store: Store, tmp_path: Path) -> None:
    store.always = "whole"
    shelf = make_shelf(store, tmp_path / "cache")
    with shelf.hold(NAME, len(DATA), SHA) as held:
        assert held.path.read_bytes() == DATA
    assert len(store.asked) == 1


def test_a_server_that_compresses(store: Store, tmp_path: Path) -> None:
    store.always = "gzip"
    shelf = make_shelf(store, tmp_path / "cache", attempts=1)
    with shelf.hold(NAME, len(DATA), SHA) as held:
        assert held.path.read_bytes() == DATA
    plain = import_module("fsspec").filesystem("http", skip_instance_cache=True)
    with pytest.raises(Exception, match=r"deflate|decod|Decod|gzip|400"):  # so it would be otherwise
        assert plain.cat_file(shelf.url(NAME), start=PIECE, end=2 * PIECE) == DATA[PIECE : 2 * PIECE]


def test_a_signed_address_keeps_its_signature_to_itself(store: Store, tmp_path: Path) -> None:
    store.faults.extend(["ok", "ok", "403"])
    signed = f"{store.address}/bucket/data?signature=secret"
    shelf = open_shard_files(signed, cache=tmp_path / "cache")
    assert shelf.read("manifest.json") == b'{"a": 1}'
    with pytest.raises(InputError) as caught:
        shelf.hold(NAME, len(DATA), SHA)
    assert "secret" not in str(caught.value)
    assert store.asked[-1].path.endswith(NAME)


def test_random_faults_of_every_kind(store: Store, tmp_path: Path) -> None:
    """A third of the requests fail in some way; still every file comes right."""
    for number in range(8):
        (tmp_path / "bucket" / "data" / f"{number}").write_bytes(DATA[number * 1000 :])
    kinds = ["503", "500", "cut", "reset", "short", "429"]
    order = hashlib.shake_128(b"faults").digest(4000)
    store.most_in_a_row = 6
    store.faults.extend(kinds[byte % len(kinds)] if byte < 85 else "ok" for byte in order)
    shelf = make_shelf(store, tmp_path / "cache", attempts=8, request_seconds=5)
    for number in range(8):
        wanted = DATA[number * 1000 :]
        with shelf.hold(f"{number}", len(wanted), hashlib.sha256(wanted).hexdigest()) as held:
            assert held.path.read_bytes() == wanted
    assert sum(each.fault != "ok" for each in store.asked) > 20


def test_a_watcher_sees_what_is_waited_for(store: Store, tmp_path: Path) -> None:
    store.faults.extend(["ok", "503", "ok", "ok", "ok", "hang"])
    shelf = make_shelf(store, tmp_path / "cache", request_seconds=1.0)
    thread = threading.Thread(target=lambda: shelf.hold(NAME, len(DATA), SHA).close())
    thread.start()
    seen = []
    while thread.is_alive():
        seen += shelf.busy()
        time.sleep(0.02)
    thread.join()
    assert shelf.busy() == []
    assert {each.name for each in seen} == {NAME}
    assert {each.url for each in seen} == {f"{store.address}/bucket/data/{NAME}"}
    assert max(each.seconds for each in seen) > 0.5
    assert max(each.attempt for each in seen) >= 2
    assert max(each.bytes for each in seen) >= PIECE
    assert all(each.bytes <= each.size == len(DATA) for each in seen)
    assert "downloading" in {each.doing for each in seen}


def test_memory_is_bounded_by_pieces(store: Store, tmp_path: Path) -> None:
    import tracemalloc

    big = hashlib.shake_128(b"big").digest(120 * PIECE)
    (tmp_path / "bucket" / "data" / "big").write_bytes(big)
    digest = hashlib.sha256(big).hexdigest()
    shelf = make_shelf(store, tmp_path / "cache", request_seconds=20)
    shelf.read("manifest.json")
    tracemalloc.start()
    with shelf.hold("big", len(big), digest):
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(big) / 4, peak  # the server's copies of four pieces are in it


SCRIPT = """
import sys, time
from packtrain.schemas.files import remote
from packtrain.training.shards.shard_files import open_shard_files
remote.PIECE = 32 << 10
url, cache, name, size, digest = sys.argv[1:6]
shelf = open_shard_files(url, cache=cache, request_seconds=30)
print("ready", flush=True)
sys.stdin.readline()
with shelf.hold(name, int(size), digest) as held:
    print(len(held.path.read_bytes()), flush=True)
"""


def start(store: Store, cache: Path) -> warm.Process:
    """A process that fetches the shard on demand, and prints its length."""
    url = f"{store.address}/bucket/data"
    command = ["python", "-c", SCRIPT, url, cache, NAME, len(DATA), SHA]
    process = warm.Process(command, stdin=True, modules=warm.SHARDS)
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: warm.Process) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def test_four_processes_make_one_download(store: Store, tmp_path: Path) -> None:
    store.latency = 0.1
    processes = [start(store, tmp_path / "cache") for _ in range(4)]
    for process in processes:
        go(process)
    assert [process.communicate()[0] for process in processes] == [f"{len(DATA)}\n"] * 4
    assert store.bytes_asked(NAME) == len(DATA)
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()].count(SHA) == 1


def test_after_a_kill_in_mid_download_another_process_succeeds_at_once(store: Store, tmp_path: Path) -> None:
    flying = 1 + remote.AHEAD
    store.faults.extend(["ok"] + ["hang"] * remote.AHEAD)
    victim, waiting = start(store, tmp_path / "cache"), start(store, tmp_path / "cache")
    go(victim)
    while len(store.asked) < flying:
        time.sleep(0.01)
    go(waiting)
    time.sleep(0.2)
    assert len(store.asked) == flying  # it waits for the first one
    victim.kill()
    victim.wait()
    began = time.monotonic()
    assert waiting.communicate()[0] == f"{len(DATA)}\n"
    assert time.monotonic() - began < 25  # a stale lock would be waited for without end; the hangs take 30 s
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_damaged_cache_is_mended_from_the_store(store: Store, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = start(store, cache)
    go(first)
    first.communicate()
    path = cache / "shards" / SHA[:2] / SHA
    damaged = bytearray(DATA)
    damaged[777] ^= 1
    path.write_bytes(damaged)
    processes = [start(store, cache) for _ in range(3)]
    for process in processes:
        go(process)
    assert [process.communicate()[0] for process in processes] == [f"{len(DATA)}\n"] * 3
    assert path.read_bytes() == DATA
    assert store.bytes_asked(NAME) == 2 * len(DATA)


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_forked_child_downloads_on_connections_of_its_own(store: Store, tmp_path: Path, kind: str) -> None:
    shelf = make_shelf(store, tmp_path / "cache", kind, request_seconds=20)
    assert shelf.read("manifest.json") == b'{"a": 1}'
    child = os.fork()
    if not child:
        try:
            os._exit(0 if shelf.hold(NAME, len(DATA), SHA).path.read_bytes() == DATA else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert shelf.read("manifest.json") == b'{"a": 1}'


def test_after_a_fault_nothing_is_held_any_longer_than_without(store: Store, shelf: RemoteShardFiles) -> None:
    """An error that is kept keeps the frames that it passed, with all that they hold."""

    def caller() -> None:
        held = shelf.hold(NAME, len(DATA), SHA)
        assert held.path.exists()
        assert shelf.cache._state().held_bytes() == len(DATA)

    store.faults.extend(["503", "ok", "cut", "reset", "short"])
    gc.collect()
    gc.disable()
    try:
        caller()
        assert shelf.cache._state().held_bytes() == 0
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_loader_over_a_bad_store_gives_the_batches_of_the_folder(store: Store, tmp_path: Path) -> None:
    """From a cache that holds a part of the shards, with a third of the requests failing."""
    torch = pytest.importorskip("torch")
    from packtrain.pipeline import demo
    from packtrain.pipeline.run.driver import run
    from packtrain.training import PackedLoader

    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"number {i} " * (1 + i * i % 37)}) + "\n" for i in range(400)))
    out = tmp_path / "bucket" / "packed"
    manifest = run(
        {
            "out": str(out),
            "cache": str(tmp_path / "encoded"),
            "tokenizer": {"path": str(Path(demo.__file__).parent / "tokenizer")},
            "sources": [{"name": "text", "format": "text", "path": str(rows)}],
            "truncate": {"max_length": 256},
            "output": {"shard_bytes": "64KiB"},
            "run": {"workers": 1, "report": False},
        }
    )
    shards = manifest.splits["train"].shards
    largest = max(shard.bytes for shard in shards)
    assert len(shards) >= 5
    kinds = ["503", "500", "cut", "reset", "short", "429"]
    order = hashlib.shake_128(b"loader").digest(4000)
    store.most_in_a_row = 4  # the loader gives up after six
    store.faults.extend(kinds[byte % len(kinds)] if byte < 85 else "ok" for byte in order)

    options: dict[str, Any] = {"rows_per_step": 4, "epochs": 2, "rank": 0, "world_size": 1, "seed": 5}
    options_there = {**options, "cache": tmp_path / "cache", "cache_bytes": 4 * largest}
    there = PackedLoader(f"{store.address}/bucket/packed", **options_there)
    here = PackedLoader(out, **options)
    assert len(there) == len(here) > 10
    for mine, its in zip(there, here, strict=True):
        assert torch.equal(mine["input_ids"], its["input_ids"])
        assert torch.equal(mine["labels"], its["labels"])
        assert torch.equal(mine["cu_seq_lens_q"], its["cu_seq_lens_q"])
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) <= 4 * largest
    assert sum(each.fault != "ok" for each in store.asked) > 5
    assert there.explain(3) == [replace(each, dataset=there.explain(3)[0].dataset) for each in here.explain(3)]


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """An S3 server by other people."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_a_real_s3_server(moto: str, tmp_path: Path) -> None:
    s3fs = pytest.importorskip("s3fs")
    options = {**NO_KEYS, "endpoint_url": moto}
    s3 = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    bucket = f"mules-{secrets.token_hex(4)}"  # the server's buckets are the whole process's
    s3.mkdir(bucket)
    s3.pipe_file(f"{bucket}/data/{NAME}", DATA)
    s3.pipe_file(f"{bucket}/data/manifest.json", b"[]")
    shelf = open_shard_files(f"s3://{bucket}/data", cache=tmp_path, storage_options=options)
    assert shelf.read("manifest.json") == b"[]"
    with pytest.raises(FileNotFoundError, match=f"s3://{bucket}/data/other"):
        shelf.read("other")
    with shelf.hold(NAME, len(DATA), SHA) as held:
        assert held.path.read_bytes() == DATA
    other = "shards/other"
    with pytest.raises(InputError, match=f"there is no s3://{bucket}/data/{other}"):
        shelf.hold(other, 5, "0" * 64)
    with pytest.raises(FileNotFoundError, match=r"s3://stable/manifest\.json"):
        open_shard_files("s3://stable", cache=tmp_path, storage_options=options).read("manifest.json")
    # What the store overwrites is seen at once: no listing or content is remembered.
    s3.pipe_file(f"{bucket}/data/manifest.json", b"[1]")
    assert shelf.read("manifest.json") == b"[1]"
    s3.pipe_file(f"{bucket}/data/{other}", DATA[:-1])
    with pytest.raises(PacktrainError, match="another length"):
        open_shard_files(f"s3://{bucket}/data", cache=tmp_path / "b", storage_options=options, attempts=2).hold(
            other, len(DATA), SHA
        )


def test_an_s3_without_credentials_says_so(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    shelf = open_shard_files(
        "s3://bucket/data", cache=tmp_path / "cache", storage_options={"endpoint_url": store.address}
    )
    with pytest.raises((StoreError, InputError), match=r"s3://bucket/data/manifest.json.*[Cc]redentials"):
        shelf.read("manifest.json")
    assert store.asked == []
