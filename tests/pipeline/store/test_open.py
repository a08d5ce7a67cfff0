"""Which stores there are, and which of them can be used."""

from pathlib import Path

import pytest
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.object_store import ObjectStore
from packtrain.pipeline.store.open import (
    beside,
    open_store,
    require_writable,
    resolve_place,
    scratch_of,
)
from packtrain.schemas.errors import ConfigError, OutputError
from packtrain.schemas.files.copies import user_folder


def test_which_store_a_place_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_store(tmp_path) == LocalStore(tmp_path)
    assert open_store(f"file://{tmp_path}/a%20b") == LocalStore(tmp_path / "a b")
    far = open_store("s3://bucket/run", scratch=tmp_path)
    assert (far.url, scratch_of(far), far.free_bytes()) == ("s3://bucket/run", LocalStore(tmp_path), None)
    assert resolve_place("x/y", tmp_path) == str(tmp_path / "x" / "y")
    assert resolve_place("s3://bucket/run/", tmp_path) == "s3://bucket/run"
    assert resolve_place("file:///x/y", tmp_path) == "/x/y"
    assert beside("/x/y", "z") == "/x/z"
    assert beside("s3://bucket/run", "z") == "s3://bucket/z"
    assert beside("s3://bucket/deep/run", "z") == "s3://bucket/deep/z"
    with pytest.raises(ConfigError):
        beside("s3://bucket", "z")
    for text in ("s3://", "s3:///run", "foo:///"):
        with pytest.raises(ConfigError):
            resolve_place(text, tmp_path)
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "elsewhere"))
    assert scratch_of(open_store("s3://bucket/run")).root == user_folder() == tmp_path / "elsewhere"


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        require_writable("sftp://me:secret@host/x")
    assert ObjectStore("sftp://me:secret@host/x", tmp_path).where("name") == "sftp://host/x/name"
