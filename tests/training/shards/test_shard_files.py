"""Where files come from: folders as they are, URLs through the cache, and messages without secrets."""

import hashlib
import os
import pickle
from pathlib import Path

import pytest
from packtrain.schemas.errors import ConfigError, InputError, IntegrityError
from packtrain.training.shards.shard_files import Fetch, LocalShardFiles, RemoteShardFiles, open_shard_files

fsspec = pytest.importorskip("fsspec")

DATA = bytes(range(256)) * 40
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "data set"
    (root / "shards").mkdir(parents=True)
    (root / "shards" / "0.arrow").write_bytes(DATA)
    (root / "manifest.json").write_bytes(b"{}")
    return root


@pytest.mark.parametrize("form", ["path", "text", "file", "quoted", "local"])
def test_a_folder_is_used_as_it_is(folder: Path, tmp_path: Path, form: str) -> None:
    forms: dict[str, str | Path] = {
        "path": folder,
        "text": str(folder),
        "file": f"file://{folder}",
        "quoted": folder.as_uri(),
        "local": f"local://{folder}",
    }
    where = forms[form]
    shelf = open_shard_files(where, cache=tmp_path / "cache")
    assert isinstance(shelf, LocalShardFiles)
    assert shelf.where == str(where)
    assert shelf.read("manifest.json") == b"{}"
    with shelf.hold("shards/0.arrow", len(DATA), SHA) as held:
        assert held.path == folder / "shards" / "0.arrow"
    assert shelf.url("shards/0.arrow") == str(folder / "shards" / "0.arrow")
    assert shelf.busy() == []
    assert not (tmp_path / "cache").exists()


def test_a_relative_path_stays_relative(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert open_shard_files("data set").read("manifest.json") == b"{}"
    assert open_shard_files("data set").url("a") == "data set/a"


def test_a_folder_misses_a_file_or_has_another(folder: Path) -> None:
    shelf = open_shard_files(folder)
    with pytest.raises(FileNotFoundError):
        shelf.read("other.json")
    with pytest.raises(IntegrityError, match=r"1\.arrow cannot be read.*packtrain verify"):
        shelf.hold("shards/1.arrow", 1, SHA)
    with pytest.raises(IntegrityError, match="has 10,240 bytes, but the manifest says 10,241"):
        shelf.hold("shards/0.arrow", len(DATA) + 1, SHA)


def test_a_file_system_without_an_event_loop(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/shelf/shards/0.arrow", DATA)
    memory.pipe_file("/shelf/manifest.json", b"{}")
    shelf = open_shard_files("memory://shelf", cache=tmp_path)
    assert isinstance(shelf, RemoteShardFiles)
    assert shelf.read("manifest.json") == b"{}"
    with pytest.raises(FileNotFoundError, match="memory://shelf/other"):
        shelf.read("other")
    with shelf.hold("shards/0.arrow", len(DATA), SHA) as held:
        assert held.path.read_bytes() == DATA
        assert held.path == tmp_path / "shards" / SHA[:2] / SHA
    memory.rm("/shelf", recursive=True)
    with shelf.hold("shards/0.arrow", len(DATA), SHA) as held:  # the store is not asked again
        assert held.path.read_bytes() == DATA
    with pytest.raises(InputError, match=r"there is no memory://shelf/shards/1\.arrow"):
        shelf.hold("shards/1.arrow", 5, "0" * 64)


def test_a_chained_address_appends_the_name_to_the_inner_path(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("inner/0.arrow", DATA)
    shelf = open_shard_files(f"zip://inner::file://{tmp_path}/data.zip", cache=tmp_path / "cache")
    with shelf.hold("0.arrow", len(DATA), SHA) as held:
        assert held.path.read_bytes() == DATA


def test_two_datasets_with_the_same_shard_share_it(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/one/a.arrow", DATA)
    one = open_shard_files("memory://one", cache=tmp_path).hold("a.arrow", len(DATA), SHA)
    memory.rm("/one", recursive=True)
    assert open_shard_files("memory://two", cache=tmp_path).hold("b.arrow", len(DATA), SHA).path == one.path


def test_an_unhashed_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no SHA-256 of memory://shelf/0\.arrow.*pack again"):
        open_shard_files("memory://shelf", cache=tmp_path).hold("0.arrow", 5, "")


@pytest.mark.parametrize(
    ("where", "url"),
    [
        ("memory://shelf/", "memory://shelf/x/y"),
        ("memory:///shelf", "memory:///shelf/x/y"),
        ("ftp://person:secret@127.0.0.1:1/folder", None),
        ("http://127.0.0.1:1/folder?signature=secret", "http://127.0.0.1:1/folder/x/y"),
        ("http://person:secret@127.0.0.1:1/folder/", "http://127.0.0.1:1/folder/x/y"),
    ],
)
def test_addresses_in_messages_hold_no_secrets(where: str, url: str | None) -> None:
    if where.startswith("http"):
        pytest.importorskip("aiohttp")
    if url is None:
        with pytest.raises((ConfigError, OSError)) as caught:
            open_shard_files(where)
        assert "secret" not in str(caught.value)
        return
    assert open_shard_files(where).url("x/y") == url


def test_an_unknown_protocol_and_options_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing://"):
        open_shard_files("nothing://bucket")
    with pytest.raises(ConfigError, match="cache_bytes"):
        open_shard_files("memory://shelf", cache_bytes=0)
    with pytest.raises(ConfigError, match="attempts"):
        open_shard_files("memory://shelf", attempts=0)


def test_a_missing_package_is_named() -> None:
    try:
        import gcsfs  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match=r"package is missing for gs://.*gcsfs"):
            open_shard_files("gs://bucket/folder")
    else:
        pytest.skip("gcsfs is installed")


def test_a_shelf_pickles_and_survives_a_fork(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/shelf/0.arrow", DATA)
    shelf = open_shard_files("memory://shelf", cache=tmp_path, cache_bytes=12_345, attempts=3)
    copy = pickle.loads(pickle.dumps(shelf))
    assert isinstance(copy, RemoteShardFiles)
    assert (copy.where, copy.cache.limit, copy.remote.attempts) == ("memory://shelf", 12_345, 3)
    child = os.fork()
    if not child:
        try:
            os._exit(0 if shelf.hold("0.arrow", len(DATA), SHA).path.read_bytes() == DATA else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fetch_reads_as_a_sentence() -> None:
    fetch = Fetch("a", "s3://b/a", "downloading", 12.34, 2, 4_194_304, 67_108_864)
    assert str(fetch) == "s3://b/a: downloading for 12.3 s, attempt 2, 4.0 MiB of 64.0 MiB"
    assert str(Fetch("m", "s3://b/m", "reading", 1, 0, 0, 0)) == "s3://b/m: reading for 1.0 s"
