"""Checksums of notes."""

import pytest
from packtrain.pipeline.store.sealed_notes import seal, unseal


@pytest.mark.parametrize(
    "value", [b'{"a":1}', b'{"name":"\xc3\xbc\xe4\xb8\xad","rows":[1,2,3],"none":null}', b'{"a":{"b":"}"}}']
)
def test_no_flipped_bit_passes_for_what_was_written(value: bytes) -> None:
    sealed = seal(value, "name")
    assert unseal(sealed, "name") == value
    assert unseal(sealed, "other") is None
    for place in range(len(sealed)):
        for bit in range(8):
            flipped = bytearray(sealed)
            flipped[place] ^= 1 << bit
            assert unseal(bytes(flipped), "name") is None, (place, bit)


@pytest.mark.parametrize("data", [None, b"", b"{}", b"[]", b'{"a":1}', seal(b'{"a":1}', "name")[:-1], b'{"check":"'])
def test_what_has_no_seal(data: bytes | None) -> None:
    assert unseal(data, "name") is None
