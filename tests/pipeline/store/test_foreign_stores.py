"""The promises of a store, and whole runs, on servers that are not ours: moto's, and Ceph's gateway where it is
installed.
"""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import packtrain
import pytest
from packtrain.pipeline.run import workers
from packtrain.pipeline.store import object_store
from packtrain.pipeline.store.local import SizeAndHash
from packtrain.pipeline.store.object_store import ObjectStore
from packtrain.schemas.dataset.manifest import FileRecord
from packtrain.schemas.errors import StoreError
from packtrain.schemas.fingerprint import hash_bytes

pytest.importorskip("obstore")

from tests import kit
from tests.conftest import FreshPool
from tests.pipeline.store.test_object_store import CHUNK, content, put
from tests.support.foreign_stores import STORES, NoServerError, environment, make_bucket

pytestmark = pytest.mark.slow
BUCKET = "mules"


@pytest.fixture(scope="module", params=sorted(STORES))
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with (
            STORES[request.param](tmp_path_factory.mktemp(request.param)) as address,
            pytest.MonkeyPatch.context() as patch,
        ):
            for key, value in environment(address).items():
                patch.setenv(key, value)
            make_bucket(address, BUCKET)
            yield address
    except NoServerError as error:
        pytest.skip(str(error))


@pytest.fixture
def place(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(object_store, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(workers, "Pool", FreshPool)  # whose processes have this environment
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "scratch"))
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture
def store(place: str) -> ObjectStore:
    return ObjectStore(place)


def test_a_put_creates_and_never_replaces(store: ObjectStore) -> None:
    assert store.put_bytes("a/b/name", b"first")
    assert not store.put_bytes("a/b/name", b"second")
    assert store.put_bytes("a/b/name", b"first")
    assert store.read("a/b/name") == b"first"
    assert (store.exists("a/b/name"), store.size("a/b/name")) == (True, 5)


def test_of_many_that_create_a_name_at_once_one_wins(store: ObjectStore) -> None:
    writers = 8
    for round in range(5):
        ready = threading.Barrier(writers)

        def create(number: int, round: int = round, ready: threading.Barrier = ready) -> bool:
            ready.wait(30)
            return store.put_bytes(f"name-{round}", b"%d" % number)

        with ThreadPoolExecutor(writers) as pool:
            created = list(pool.map(create, range(writers)))
        assert sum(created) == 1
        assert store.read(f"name-{round}") == b"%d" % created.index(True)


def test_what_is_not_there(store: ObjectStore) -> None:
    assert (store.exists("x"), store.read("x"), store.size("x"), store.hash("x")) == (False, None, None, None)
    assert (store.names(), store.names("y")) == ([], [])
    with pytest.raises(FileNotFoundError):
        store.local("x")
    store.put_bytes("folder/below", b"1")
    assert (store.exists("folder"), store.size("folder"), store.read("folder")) == (False, None, None)
    store.remove("x")
    nowhere = ObjectStore("s3://nowhere/run")
    assert (nowhere.names(), nowhere.read("x"), nowhere.size("x")) == ([], None, None)
    with pytest.raises(StoreError, match="there is no such bucket"):
        nowhere.put_bytes("name", b"1")


def test_names_beyond_one_page_of_a_listing(store: ObjectStore) -> None:
    names = [f"a/{number:04}" for number in range(1_050)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.put_bytes(name, b"1"), names))
    ObjectStore(f"{store.url}-neighbour").put_bytes("z", b"1")
    assert store.names() == names
    store.remove(names[0])
    assert store.names("a") == names[1:]


@pytest.mark.parametrize("size", [0, 5, 2 * CHUNK, 3 * CHUNK + 1])
def test_a_draft_comes_whole_whatever_its_size(store: ObjectStore, size: int) -> None:
    data = content(size)
    put(store, "big", content(size, b"damaged"))
    put(store, "big", data)
    expected = SizeAndHash(size, hash_bytes(data))
    assert store.hash("big") == expected
    for path in (store.local("big"), store.local(FileRecord("big", size, expected.hash))):
        assert path.read_bytes() == data


def test_what_is_refused_is_said(request: pytest.FixtureRequest, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "moto" in request.node.name:
        pytest.skip("moto takes any key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "WRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "WRONGSECRET")
    with pytest.raises(StoreError, match="give credentials") as refused:
        ObjectStore(place).put_bytes("x", b"1")
    assert "WRONGSECRET" not in str(refused.value)


def test_a_whole_run_gives_the_bytes_of_a_local_one(place: str, tmp_path: Path) -> None:
    config = kit.configure(tmp_path, "chats", "texts")
    local = kit.packed(config)
    far = kit.merged(config, {"out": f"{place}/out", "cache": f"{place}/cache"})
    (tmp_path / "far.json").write_text(json.dumps(far))
    done = kit.cli("run", "far.json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert local.manifest.hash[:16] in done.out
    for words in (["verify", "--deep"], ["wait", "--timeout", "10"], ["inspect", "--row", "0"]):
        outcome = kit.cli(words[0], f"{place}/out", *words[1:], cwd=tmp_path)
        assert outcome.code == 0, outcome
    again = kit.cli("run", "far.json", cwd=tmp_path)
    assert "already finished" in again.out + again.err
    store = ObjectStore(f"{place}/out")
    shard = next(file.name for file in local.manifest.all_files if file.name.endswith(".arrow"))
    store.replace_bytes(shard, b"damaged")
    assert kit.cli("verify", f"{place}/out", cwd=tmp_path).code == 1
    repaired = kit.cli("verify", f"{place}/out", "--repair", "far.json", cwd=tmp_path)
    assert repaired.code == 0, repaired
    assert kit.cli("verify", f"{place}/out", "--deep", cwd=tmp_path).code == 0


def test_a_loader_reads_from_it(place: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from packtrain.training import PackedLoader

    config = kit.configure(tmp_path, "texts")
    local = kit.packed(config)
    packtrain.run(kit.merged(config, {"out": f"{place}/out", "cache": f"{place}/cache"}), base=tmp_path, quiet=True)
    near, far = (
        [batch["input_ids"].tolist() for batch in PackedLoader(data, rows_per_step=2, epochs=1, tail="pad")]
        for data in (str(local.folder), f"{place}/out")
    )
    assert near == far
    assert near
