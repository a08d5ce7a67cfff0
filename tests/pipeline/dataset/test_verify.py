"""Verify finds files that nobody knows, and says what an unfinished folder is."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.store.driver_lock import DriverLock
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.errors import InputError


def test_a_shard_that_nobody_knows_is_found(little: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(little.out, out)
    (out / "train" / "shards" / "00000-0123456789abcdef.arrow").write_bytes(b"x")
    assert [finding.name for finding in verify(out).findings] == ["train/shards/00000-0123456789abcdef.arrow"]


def test_a_run_that_has_only_begun_is_named(tmp_path: Path) -> None:
    with DriverLock(LocalStore(tmp_path)), pytest.raises(InputError):
        verify(tmp_path)
    with pytest.raises(InputError):
        verify(tmp_path)
