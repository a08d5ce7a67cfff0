"""How rows were encoded, as a cache keeps it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packtrain.pipeline.encode import EncodeSpec
from packtrain.pipeline.sealed import seal
from packtrain.pipeline.store import LocalStore
from packtrain.schemas.errors import IntegrityError


def test_a_specification_is_what_its_name_says(little: Any, tmp_path: Path) -> None:
    little.copy(tmp_path)
    cache = LocalStore(tmp_path / "cache")
    (path,) = cache.path("specs").iterdir()
    name = f"specs/{path.name}"
    spec = EncodeSpec.load(cache, name)
    assert spec.save(cache) == name
    other = replace(spec, template="{{ 'another' }}")
    for data in (msgspec.json.encode(other), msgspec.json.encode({"of": "another shape"}), b"[" * 10_000):
        path.write_bytes(seal(data))
        with pytest.raises(IntegrityError, match="vanished, or is damaged; run again"):
            EncodeSpec.load(cache, name)
        assert spec.save(cache) == name
        assert EncodeSpec.load(cache, name) == spec, "a run puts the right one in its place"
