"""Checksums of notes, and files compared with their hashes."""

import random
from pathlib import Path

import pytest
from packtrain.pipeline.execute.checking import damaged
from packtrain.pipeline.store.checksummed import seal, unseal
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.open import StoredFile
from packtrain.schemas.fingerprint import hash_bytes


def test_a_seal_is_one_key_of_the_same_object() -> None:
    assert seal(b'{"a":1}') == b'{"check":"' + hash_bytes(b'{"a":1}')[:32].encode() + b'","a":1}'
    assert unseal(seal(b'{"a":1}')) == b'{"a":1}'


@pytest.mark.parametrize(
    "value", [b'{"a":1}', b'{"name":"\xc3\xbc\xe4\xb8\xad","rows":[1,2,3],"none":null}', b'{"a":{"b":"}"}}']
)
def test_no_flipped_bit_passes_for_what_was_written(value: bytes) -> None:
    sealed = seal(value)
    assert unseal(sealed) == value
    for place in range(len(sealed)):
        for bit in range(8):
            flipped = bytearray(sealed)
            flipped[place] ^= 1 << bit
            assert unseal(bytes(flipped)) is None, (place, bit)


@pytest.mark.parametrize("data", [None, b"", b"{}", b"[]", b"null", b'{"a":1}', seal(b'{"a":1}')[:-1], b'{"check":"'])
def test_what_has_no_seal(data: bytes | None) -> None:
    assert unseal(data) is None


def test_damaged_and_missing_files_are_found(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    chance = random.Random(1)
    files = []
    for number in range(40):
        data = chance.randbytes(chance.randrange(1, 2000))
        store.put_bytes(f"{number:02d}", data)
        files.append(StoredFile(f"{number:02d}", len(data), hash_bytes(data)))
    assert damaged(store, files) == set()
    (tmp_path / "03").unlink()
    (tmp_path / "17").write_bytes((tmp_path / "17").read_bytes() + b"x")
    flipped = bytearray((tmp_path / "29").read_bytes())
    flipped[0] ^= 1
    (tmp_path / "29").write_bytes(flipped)
    assert damaged(store, files) == {"03", "17", "29"}
    assert damaged(store, files[:3]) == set()
    assert damaged(store, []) == set()
