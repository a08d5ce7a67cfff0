"""Copies of remote files. Most of what they promise is tested with the loader, in `tests/training`."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from blake3 import blake3
from packtrain.schemas.errors import StoreError
from packtrain.schemas.files.copy_cache import Copies


def test_a_file_that_is_larger_than_the_disk_costs_no_other(tmp_path: Path) -> None:
    def download(path: Path) -> None:
        path.write_bytes(b"abc")

    copies = Copies(tmp_path)
    kept = copies.copy("0" * 64, 3, download)
    with pytest.raises(StoreError):  # too small, or for some file systems the file too large
        copies.copy("1" * 64, shutil.disk_usage(tmp_path).total + 1, download)
    assert kept.read_bytes() == b"abc"


def test_copies_that_are_written_at_once_stay_within_the_bound(tmp_path: Path) -> None:
    """None of three can make room for the others before it is whole."""
    contents = [bytes([number]) * 1000 for number in range(3)]
    keys = [blake3(content).hexdigest() for content in contents]
    assert len({key[:2] for key in keys}) == 3, "each has a lock of its own"
    copies, together = Copies(tmp_path, 2_500), Barrier(3)

    def fetch(key: str, content: bytes) -> bytes:
        def download(path: Path) -> None:
            path.write_bytes(content)
            together.wait(60)

        with os.fdopen(copies.open(key, len(content), download), "rb") as file:
            file.seek(0)
            return file.read()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(fetch, keys, contents)) == contents
    assert sum(path.stat().st_size for path in (tmp_path / "copies").glob("??/*")) <= 2_500
