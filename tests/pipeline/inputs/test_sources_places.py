"""What `path` can name: patterns, folders, saved datasets, URLs, datasets by name; and how each of them fails."""

import gzip
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.inputs.blocks import InputFile
from packtrain.pipeline.inputs.find import find_inputs
from packtrain.pipeline.inputs.read import block_examples
from packtrain.pipeline.inputs.scan import scan_inputs
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.config.config import SourceConfig
from packtrain.schemas.errors import ConfigError
from packtrain.schemas.files.web import open_web
from packtrain.stages.prep import Options

from tests.support import tasks
from tests.support.faulty import Faulty
from tests.support.hub_stand_in import taken_for_the_hub


def source(*paths: object, **more: Any) -> SourceConfig:
    data: dict[str, Any] = {"name": "one", "format": "text", "path": [str(path) for path in paths], **more}
    return SourceConfig.model_validate(data)


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def texts(files: list[InputFile]) -> list[tuple[str, str | None]]:
    """(file's label, text) of every example."""
    return [
        (file.label, example.text)
        for file in files
        for block in file.blocks
        for example in block_examples(block, ("text", Options()), 1 << 20).examples
    ]


def scan(chosen: SourceConfig, base: Path) -> list[InputFile]:
    return scan_inputs([chosen], base, LocalStore(base / "cache"))


def names(found: SourceConfig, base: Path) -> list[str]:
    return [os.path.relpath(one.name, base) for one in find_inputs(found, base, base)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files of several kinds, some of which are not data."""
    for name in ("b.jsonl", "a.jsonl", "deep/er/c.jsonl.gz", "deep/d.csv.zst", "deep/notes.md", "deep/.hidden.jsonl",
                 "_run/plan.json", "deep/e.parquet"):  # fmt: skip
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path


def test_patterns_are_sorted(tree: Path) -> None:
    assert names(source("data/*.jsonl"), tree) == ["data/a.jsonl", "data/b.jsonl"]
    assert names(source("data/**/*.jsonl*"), tree) == ["data/a.jsonl", "data/b.jsonl", "data/deep/er/c.jsonl.gz"]
    assert names(source("data/[b]*", tree / "data/de*/*.parquet"), tree) == ["data/b.jsonl", "data/deep/e.parquet"]
    with pytest.raises(ConfigError):
        find_inputs(source("data/*.arrow"), tree, tree)
    with pytest.raises(ConfigError):
        find_inputs(source("data/*.jsonl", "data/a.jsonl"), tree, tree)


def test_a_name_that_looks_like_a_pattern(tree: Path) -> None:
    (tree / "data/a[1].jsonl").write_bytes(b"x")
    assert names(source("data/a[1].jsonl"), tree) == ["data/a[1].jsonl"]
    assert "data/a[1].jsonl" in names(source("data/*.jsonl"), tree)


def test_a_name_that_no_file_can_have(tree: Path) -> None:
    with pytest.raises(ConfigError, match="File name too long"):
        find_inputs(source("a" * 300), tree, tree)


def test_a_folder_is_all_data_files_in_it(tree: Path) -> None:
    data = ["data/a.jsonl", "data/b.jsonl", "data/deep/d.csv.zst", "data/deep/e.parquet", "data/deep/er/c.jsonl.gz"]
    assert names(source("data"), tree) == data
    (tree / "data/_old").symlink_to(tree)  # skipped, like all that begins so
    assert names(source("data"), tree) == data
    (tree / "none").mkdir()
    (tree / "none/readme.md").write_text("x")
    with pytest.raises(ConfigError):
        find_inputs(source("none"), tree, tree)


# --- datasets.save_to_disk ---


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    import datasets

    splits = {
        name: datasets.Dataset.from_dict({"text": [f"{name} {number}" for number in range(count)]})
        for name, count in (("train", 30), ("test", 7))
    }
    # One of them was filtered: what is not selected is not saved.
    splits["test"] = splits["test"].select([5, 1, 3])
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved", num_shards={"train": 3, "test": 1})
    return tmp_path / "saved"


def test_a_saved_dataset(saved: Path, tmp_path: Path) -> None:
    files = scan(source("saved", split="train"), tmp_path)
    assert [file.label for file in files] == [f"data-0000{n}-of-00003" for n in range(3)]
    assert [text for _, text in texts(files)] == [f"train {number}" for number in range(30)]
    for chosen in (source("saved/test"), source("saved", split="test"), source("saved/test", split=None)):
        files = scan(chosen, tmp_path)
        assert [text for _, text in texts(files)] == ["test 5", "test 1", "test 3"]


# --- URLs ---


@pytest.fixture
def memory() -> Iterator[str]:
    """A store in memory with two plain files, a compressed one, and a table."""
    fs = fsspec.filesystem("memory")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["four"]}), sink)
    for name, data in (
        ("b.jsonl", lines("two")),
        ("a.jsonl", lines("one", "uno")),
        ("deep/c.jsonl.gz", gzip.compress(lines("three"))),
        ("deep/d.parquet", bytes(sink.getvalue())),
        ("deep/notes.txt", b"x"),
    ):
        fs.pipe_file(f"/bucket/{name}", data)
    yield "memory://bucket"
    fs.rm("/bucket", recursive=True)


def test_urls(memory: str, tmp_path: Path) -> None:
    chosen = source(f"{memory}/*.jsonl", f"{memory}/deep")
    files = scan(chosen, tmp_path)
    assert texts(files) == [("a", "one"), ("a", "uno"), ("b", "two"), ("c", "three"), ("d", "four")]
    assert [file.shown for file in files] == ["a.jsonl", "b.jsonl", "c.jsonl.gz", "d.parquet"]
    assert [file.origin.partition("bucket")[2] for file in files] == [
        "/a.jsonl",
        "/b.jsonl",
        "/deep/c.jsonl.gz",
        "/deep/d.parquet",
    ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A folder behind HTTP."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    (tmp_path / "served").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "served")) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_what_a_url_keeps_to_itself(server: str, tmp_path: Path) -> None:
    (tmp_path / "served/a.jsonl").write_bytes(lines("one"))
    (file,) = scan(source(f"{server.replace('//', '//me:secret@')}/a.jsonl?signature=secret"), tmp_path)
    assert (file.label, file.shown) == ("a", "a.jsonl")
    assert "secret" not in file.origin


def test_another_host_gets_no_credentials() -> None:
    """A server sends on to another one, as stores do that hand out signed addresses."""
    got, targets = [], list[str]()

    class Sends(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append((self.path, self.headers["Authorization"], self.headers["X-Token"]))
            self.send_response(302)
            self.send_header("Location", targets[0] if self.path == "/here" else "/here")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    class Asked(Sends):
        def do_GET(self) -> None:
            got.append((self.path, self.headers["Authorization"], self.headers["X-Token"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sends) as first,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Asked) as other,
    ):
        for one in (first, other):
            threading.Thread(target=one.serve_forever, args=(0.02,), daemon=True).start()
        targets.append(f"http://127.0.0.1:{other.server_address[1]}/a.jsonl")
        url = f"http://me:secret@127.0.0.1:{first.server_address[1]}/a.jsonl"
        with open_web(url, {"X-Token": "secret"}):
            pass
        first.shutdown()
        other.shutdown()
    assert [(path, login is not None, token) for path, login, token in got] == [
        ("/a.jsonl", True, "secret"),
        ("/here", True, "secret"),  # the same host
        ("/a.jsonl", False, None),
    ]


def test_a_server_that_never_stops_sending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It announces one row, and its answer has no end: only the announced bytes are kept."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    row, sent = lines("one"), [0]

    class Endless(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(row)))
            self.send_header("ETag", "one")
            self.end_headers()
            try:
                self.wfile.write(row)
                while sent[0] < 1 << 30:
                    self.wfile.write(b" " * (1 << 20))
                    sent[0] += 1 << 20
            except OSError:
                pass

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/a.jsonl"
        assert texts(scan(source(url), tmp_path)) == [("a", "one")]
        assert sent[0] < 1 << 29
        server.shutdown()


def test_s3(tmp_path: Path, faulty: Faulty) -> None:
    """An object store: listing, sizes, and the hash that it keeps."""
    faulty.objects.update({"data/b.jsonl": lines("two"), "data/a.jsonl.gz": gzip.compress(lines("one"))})
    chosen = source("s3://mules/data/*.jsonl*")
    assert texts(scan(chosen, tmp_path)) == [("a", "one"), ("b", "two")]
    before = [one.stamp for one in find_inputs(chosen, tmp_path, tmp_path)]
    faulty.objects["data/b.jsonl"] = lines("duo")
    after = [one.stamp for one in find_inputs(chosen, tmp_path, tmp_path)]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]
    assert texts(scan(source("s3://mules/data"), tmp_path))[1] == ("b", "duo")


# --- datasets by name ---


def elsewhere(path: str, base: Path) -> list[tuple[str, str]]:
    """The texts of a source, read in a process of its own: the library reads the hub's address when it is imported."""
    program = (
        "import json, sys, pathlib\n"
        "from tests.pipeline.inputs.test_sources_places import scan, source, texts\n"
        "print(json.dumps(texts(scan(source(sys.argv[1]), pathlib.Path(sys.argv[2])))))"
    )
    environment = os.environ | {"PYTHONPATH": str(tasks.ROOT)}
    command = [sys.executable, "-c", program, path, str(base)]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert b"examples/s" not in done.stderr  # a progress bar without a terminal
    return [(label, text) for label, text in json.loads(done.stdout)]


@pytest.mark.slow
def test_json_of_the_hub_is_read_as_it_is_and_offline_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default the library makes one row of what looks like an agent's trace, and offline it gives whatever revision
    it loaded last."""
    rows = [
        {"type": "session", "message": {"a": 1}, "text": "one"},
        {"type": "message", "message": {"role": "user", "content": [{"text": "Hello"}]}, "text": "two"},
        {"type": "message", "message": {"role": "assistant", "content": "hi"}, "text": "three"},
    ]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    expected = [("traces-train", str(row["text"])) for row in rows]
    with taken_for_the_hub(monkeypatch, tmp_path) as stand_in:
        repository = stand_in.create("me/traces", {"train.jsonl": data})
        first = f"hf://me/traces@{repository.commits[-1].hash}"
        assert elsewhere(first, tmp_path) == expected
        repository.add({"train.jsonl": data + lines("four")})
        assert elsewhere("hf://me/traces", tmp_path) == [*expected, ("traces-train", "four")]
    assert texts(scan(source(first), tmp_path)) == expected
    assert len(texts(scan(source("hf://me/traces"), tmp_path))) == 4
    with pytest.raises(ConfigError, match="cannot be reached"):
        scan(source("hf://me/traces@other"), tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert texts(scan(source(first), tmp_path)) == expected
