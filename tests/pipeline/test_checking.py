"""Checksums of notes, and files held against their hashes: here, or by workers where it is much."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline import checking
from packtrain.pipeline.checking import damaged
from packtrain.pipeline.executors import Executor, InlineExecutor
from packtrain.pipeline.local_executor import LocalExecutor
from packtrain.pipeline.parts import PartFile
from packtrain.pipeline.sealed import seal, unseal
from packtrain.pipeline.store import LocalStore
from packtrain.schemas.fingerprint import hash_bytes


def test_a_seal_is_one_key_of_the_same_object() -> None:
    assert seal(b'{"a":1}') == b'{"check":"' + hash_bytes(b'{"a":1}')[:32].encode() + b'","a":1}'
    assert unseal(seal(b'{"a":1}')) == b'{"a":1}'


@given(st.dictionaries(st.text(), st.integers(), min_size=1), st.data())
def test_no_flipped_bit_passes_for_what_was_written(value: dict[str, int], data: st.DataObject) -> None:
    import json

    sealed = bytearray(seal(json.dumps(value).encode()))
    place, bit = data.draw(st.integers(0, len(sealed) - 1)), data.draw(st.integers(0, 7))
    sealed[place] ^= 1 << bit
    assert unseal(bytes(sealed)) is None


@pytest.mark.parametrize("data", [None, b"", b"{}", b"[]", b"null", b'{"a":1}', seal(b'{"a":1}')[:-1], b'{"check":"'])
def test_what_has_no_seal(data: bytes | None) -> None:
    assert unseal(data) is None


@pytest.fixture(params=[1, 2])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    made: Executor = InlineExecutor() if request.param == 1 else LocalExecutor(2)
    yield made
    made.close()


def test_much_is_read_by_the_workers(executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "ALONE_BYTES", 1000)
    monkeypatch.setattr(checking, "TASK_BYTES", 2500)
    store = LocalStore(tmp_path)
    chance = random.Random(1)
    files = []
    for number in range(40):
        data = chance.randbytes(chance.randrange(1, 2000))
        store.put_bytes(f"{number:02d}", data)
        files.append(PartFile(f"{number:02d}", len(data), hash_bytes(data)))
    assert damaged(executor, store, files) == set()
    (tmp_path / "03").unlink()
    (tmp_path / "17").write_bytes((tmp_path / "17").read_bytes() + b"x")
    flipped = bytearray((tmp_path / "29").read_bytes())
    flipped[0] ^= 1
    (tmp_path / "29").write_bytes(flipped)
    assert damaged(executor, store, files) == {"03", "17", "29"}
    assert damaged(executor, store, files[:3]) == set()
    assert damaged(executor, store, []) == set()
