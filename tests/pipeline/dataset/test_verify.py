"""Verify finds any bit that flipped, wherever it did, and says what an unfinished folder is."""

import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.run.driver import run
from packtrain.pipeline.store.driver_lock import DriverLock
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.errors import InputError, IntegrityError


def flip(path: Path, chance: random.Random) -> tuple[int, int]:
    """Flip one bit of a file; returns the byte and the bit."""
    data = bytearray(path.read_bytes())
    place, bit = chance.randrange(len(data)), chance.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return place, bit


def test_a_flipped_bit_is_found_in_every_file(little: Any, tmp_path: Path) -> None:
    chance = random.Random(11)
    out = tmp_path / "out"
    shutil.copytree(little.out, out)
    assert verify(out, deep=True).sound
    files = little.files()
    assert {"manifest.json", "dataset_dict.json", "train/rows.arrow", "documents.parquet"} < set(files)
    others = sorted({*files} - {"manifest.json"})
    for half in range(16):  # every other file at a time, so that what is sound is not named either
        where = {name: flip(out / name, chance) for name in others[half % 2 :: 2]}
        findings = verify(out, deep=True).findings
        assert sorted(finding.name for finding in findings) == [*where], (where, findings)
        for name in where:
            (out / name).write_bytes(files[name])
    for _ in range(8):
        assert_manifest_is_found(out, flip(out / "manifest.json", chance))
        (out / "manifest.json").write_bytes(files["manifest.json"])
    assert verify(out, deep=True).sound


def assert_manifest_is_found(out: Path, where: tuple[int, int]) -> None:
    try:
        named = [finding.name for finding in verify(out, deep=True).findings]
    except IntegrityError as error:
        named = re.findall(r"manifest\.json", str(error))
    # A finding is such as 1E5 for 1e5: what it says is the same, its bytes are not.
    assert "manifest.json" in named, where


def test_what_is_missing_or_too_short_is_named_once(little: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(little.out, out)
    (out / "train" / "rows.arrow").unlink()
    (out / "rejects.jsonl").write_bytes(b"")
    assert sorted(finding.name for finding in verify(out).findings) == ["rejects.jsonl", "train/rows.arrow"]


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


def test_a_finished_run_is_sound_after_its_cache_is_gone(little: Any, tmp_path: Path) -> None:
    config = little.copy(tmp_path)
    shutil.rmtree(tmp_path / "cache")
    assert run(config).hash == run(little.config).hash
    assert verify(tmp_path / "out", deep=True).sound
