"""Copies of remote files. Most of what they promise is tested with the loader, in `tests/training`."""

import shutil
from pathlib import Path

import pytest
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
