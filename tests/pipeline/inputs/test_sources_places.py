"""What `path` can name: patterns, folders, saved datasets, URLs, datasets by name; and how each of them fails."""

import gzip
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.inputs import hub
from packtrain.pipeline.inputs.blocks import InputFile
from packtrain.pipeline.inputs.find import Found, InputKind, find_inputs
from packtrain.pipeline.inputs.read import prepare_block
from packtrain.pipeline.inputs.scan import scan_source
from packtrain.schemas.config.config import SourceConfig
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.schemas.files.remote import Remote
from packtrain.stages.prep import make_format

Command = Callable[..., Any]


def source(*paths: object, **more: Any) -> SourceConfig:
    data: dict[str, Any] = {"name": "one", "format": "text", "path": [str(path) for path in paths], **more}
    return SourceConfig.model_validate(data)


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def texts(files: list[InputFile]) -> list[tuple[str, str | None]]:
    """(file's label, text) of every example."""
    form = make_format("text")
    return [
        (file.label, example.text)
        for file in files
        for block in file.blocks
        for example in prepare_block(file.where(block), block, form, 1 << 20).examples
    ]


def names(found: SourceConfig, base: Path) -> list[str]:
    return [one.path.relative_to(base).as_posix() for one in find_inputs(found, base)]


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
        find_inputs(source("data/*.arrow"), tree)
    with pytest.raises(ConfigError):
        find_inputs(source("data/*.jsonl", "data/a.jsonl"), tree)


def test_a_name_that_looks_like_a_pattern(tree: Path) -> None:
    (tree / "data/a[1].jsonl").write_bytes(b"x")
    assert names(source("data/a[1].jsonl"), tree) == ["data/a[1].jsonl"]
    assert "data/a[1].jsonl" in names(source("data/*.jsonl"), tree)


def test_a_folder_is_all_data_files_in_it(tree: Path) -> None:
    data = ["data/a.jsonl", "data/b.jsonl", "data/deep/d.csv.zst", "data/deep/e.parquet", "data/deep/er/c.jsonl.gz"]
    assert names(source("data"), tree) == data
    (tree / "none").mkdir()
    (tree / "none/readme.md").write_text("x")
    with pytest.raises(ConfigError):
        find_inputs(source("none"), tree)


# --- datasets.save_to_disk ---


def test_a_saved_dataset_names_no_files_outside_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.arrow").write_bytes(b"x")
    (tmp_path / "saved").mkdir()
    for name in ("../secret.arrow", str(tmp_path / "secret.arrow")):
        (tmp_path / "saved/state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        with pytest.raises(InputError):
            find_inputs(source("saved"), tmp_path)
    (tmp_path / "saved/state.json").unlink()
    (tmp_path / "saved/dataset_dict.json").write_text(json.dumps({"splits": ["../saved"]}))
    with pytest.raises(InputError):
        find_inputs(source("saved"), tmp_path)


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
    files = scan_source(source("saved", split="train"), tmp_path, tmp_path / "cache")
    assert [file.label for file in files] == [f"data-0000{n}-of-00003" for n in range(3)]
    assert [text for _, text in texts(files)] == [f"train {number}" for number in range(30)]
    for chosen in (source("saved/test"), source("saved", split="test"), source("saved/test", split=None)):
        files = scan_source(chosen, tmp_path, tmp_path / "cache")
        assert [text for _, text in texts(files)] == ["test 5", "test 1", "test 3"]


# --- URLs ---


@pytest.fixture
def memory() -> Iterator[str]:
    """A store in memory with two plain files, a compressed one, and a table."""
    import fsspec

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
    files = scan_source(chosen, tmp_path, tmp_path / "cache")
    assert texts(files) == [("a", "one"), ("a", "uno"), ("b", "two"), ("c", "three"), ("d", "four")]
    assert [file.shown for file in files] == ["a.jsonl", "b.jsonl", "c.jsonl.gz", "d.parquet"]
    assert [file.origin.partition("bucket")[2] for file in files] == [
        "/a.jsonl",
        "/b.jsonl",
        "/deep/c.jsonl.gz",
        "/deep/d.parquet",
    ]


def test_a_url_is_copied_once_and_again_when_it_changes(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    copied: list[str] = []
    pieces = Remote.pieces

    def counted(self: Remote, *arguments: Any, **options: Any) -> Iterator[bytes]:
        copied.append(self.url)
        return pieces(self, *arguments, **options)

    monkeypatch.setattr(Remote, "pieces", counted)
    chosen = source(f"{memory}/a.jsonl")
    for _ in range(2):
        files = scan_source(chosen, tmp_path, tmp_path / "cache")
        assert texts(files) == [("a", "one"), ("a", "uno")]
    assert len(copied) == 1
    stamp = find_inputs(chosen, tmp_path)[0].stamp
    time.sleep(0.01)
    fsspec.filesystem("memory").pipe_file("/bucket/a.jsonl", lines("neu", "uno"))
    assert find_inputs(chosen, tmp_path)[0].stamp != stamp
    assert texts(scan_source(chosen, tmp_path, tmp_path / "cache")) == [("a", "neu"), ("a", "uno")]
    assert len(copied) == 2


def test_a_url_that_stutters(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is waited out; one that stays is reported."""
    from fsspec.implementations.memory import MemoryFileSystem

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    opened = MemoryFileSystem._open
    tries: list[str] = []

    def shaky(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        tries.append(path)
        if len(tries) == 1:
            raise ConnectionResetError("gone")
        return opened(self, path, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "_open", shaky)
    assert len(texts(scan_source(source(f"{memory}/a.jsonl"), tmp_path, tmp_path / "cache"))) == 2
    assert len(tries) == 2

    def broken(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(MemoryFileSystem, "_open", broken)
    with pytest.raises(InputError):
        scan_source(source(f"{memory}/b.jsonl"), tmp_path, tmp_path / "cache")


def test_a_url_on_the_command_line(
    memory: str, tmp_path: Path, packtrain: Command, tiny_tokenizer: Path, new_cache: Callable[[], Path]
) -> None:
    settings = ["--set", f"cache={new_cache()}", "--workers", "1"]
    place = ["--tokenizer", tiny_tokenizer, "--out", tmp_path / "out"]
    done = packtrain("run", "--format", "text", "--input", f"{memory}/*.jsonl", *place, *settings)
    assert done.code == 0, done.err
    table = pq.read_table(tmp_path / "out/documents.parquet").to_pylist()
    assert [entry["id"] for entry in table] == ["text/a:1", "text/a:2", "text/b:1"]
    tree = packtrain("run", "--format", "text", "--input", f"{memory}/*.jsonl", *place, *settings, "--dry-run")
    assert "memory:///bucket/a.jsonl (2 rows" in tree.out or "memory://bucket/a.jsonl (2 rows" in tree.out, tree.out


def test_what_a_url_keeps_to_itself() -> None:
    found = Found(InputKind.URL, "https://me:secret@host/data/a.jsonl?signature=secret", 1, 1)
    assert found.path == Path("/host/data/a.jsonl")
    assert "secret" not in found.shown


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


def test_http(server: str, tmp_path: Path) -> None:
    (tmp_path / "served/a.jsonl.gz").write_bytes(gzip.compress(lines("one", "two")))
    files = scan_source(source(f"{server}/a.jsonl.gz"), tmp_path, tmp_path / "cache")
    assert texts(files) == [("a", "one"), ("a", "two")]
    with pytest.raises(ConfigError):
        find_inputs(source(f"{server}/b.jsonl"), tmp_path)


def test_a_server_that_never_stops_sending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It announces one row, and its answer has no end: only the announced bytes are kept."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    row, sent = lines("one"), [0]

    class Endless(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(row)))
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
        assert texts(scan_source(source(url), tmp_path, tmp_path / "cache")) == [("a", "one")]
        assert sent[0] < 1 << 29
        server.shutdown()


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(InputError):
        find_inputs(source(f"http://127.0.0.1:{port}/a.jsonl"), tmp_path)


def test_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store as it answers: listing, sizes, and the hash that it keeps."""
    pytest.importorskip("obstore")
    server_module = pytest.importorskip("moto.server")
    for key, value in (("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x"), ("AWS_DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(key, value)
    server = server_module.ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        import boto3

        client = boto3.client("s3")
        client.create_bucket(Bucket="mules")
        client.put_object(Bucket="mules", Key="data/b.jsonl", Body=lines("two"))
        client.put_object(Bucket="mules", Key="data/a.jsonl.gz", Body=gzip.compress(lines("one")))
        chosen = source("s3://mules/data/*.jsonl*")
        assert texts(scan_source(chosen, tmp_path, tmp_path / "cache")) == [("a", "one"), ("b", "two")]
        before = [one.stamp for one in find_inputs(chosen, tmp_path)]
        client.put_object(Bucket="mules", Key="data/b.jsonl", Body=lines("duo"))
        after = [one.stamp for one in find_inputs(chosen, tmp_path)]
        assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]
        assert texts(scan_source(source("s3://mules/data"), tmp_path, tmp_path / "cache"))[1] == ("b", "duo")
    finally:
        server.stop()


# --- datasets by name ---


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder as the hub has them: files named by their splits, no script."""
    folder = tmp_path / "chats"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(lines(*(f"train {number}" for number in range(20))))
    (folder / "test.jsonl").write_bytes(lines("test 0"))
    return folder


@pytest.mark.slow
def test_a_dataset_that_the_library_loads(repository: Path, tmp_path: Path) -> None:
    for name in ("hf://./chats", f"hf://{repository}"):
        files = scan_source(source(name, split="train"), tmp_path, tmp_path / "cache")
        assert texts(files) == [("chats-train", f"train {number}") for number in range(20)]
    with pytest.raises(ConfigError):
        scan_source(source("hf://./chats"), tmp_path, tmp_path / "cache")
    with pytest.raises(ConfigError):
        scan_source(source("hf://./chats", split="dev"), tmp_path, tmp_path / "cache")
    with pytest.raises(ConfigError):
        scan_source(source("hf://./chats", split="train", subset="small"), tmp_path, tmp_path / "cache")
    with pytest.raises(ConfigError):
        find_inputs(source("hf://./nowhere"), tmp_path)


def test_rows_that_look_like_an_agents_trace_are_read_as_they_are(tmp_path: Path) -> None:
    """By default the library makes one row of such a file, or fails."""
    rows = [
        {"type": "session", "message": {"a": 1}, "text": "one"},
        {"type": "message", "message": {"role": "user", "content": [{"text": "Hello"}]}, "text": "two"},
        {"type": "message", "message": {"role": "assistant", "content": "hi"}, "text": "three"},
    ]
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = texts(scan_source(source("hf://./traces"), tmp_path, tmp_path / "cache"))
    assert found == [("traces-train", text) for text in ("one", "two", "three")]


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline by setting, by a port without a listener, or by a server that never answers until the time limit."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(hub, "PATIENCE", 0.5)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        assert not hub._reachable()
        with pytest.raises(ConfigError):
            scan_source(source("hf://no/such"), tmp_path, tmp_path / "cache")
        listener.listen()
        assert not hub._reachable()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub._reachable()
