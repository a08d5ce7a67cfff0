"""Notes of scans: an unchanged input is not read again, and every other one is."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from packtrain.pipeline.inputs import scan as scan_module
from packtrain.pipeline.inputs import scan_cache
from packtrain.pipeline.inputs.blocks import InputFile
from packtrain.pipeline.inputs.scan_cache import scan_inputs
from packtrain.pipeline.store.checksummed import seal, unseal
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.config.config import SourceConfig

Scan = Callable[..., list[InputFile]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are really scanned. Files count as settled as soon as they are written."""
    out: list[str] = []
    scan = scan_module.scan_file

    def counted(source: str, label: str, path: Path, *more: Any) -> InputFile:
        out.append(path.name)
        return scan(source, label, path, *more)

    monkeypatch.setattr(scan_module, "scan_file", counted)
    monkeypatch.setattr(scan_module, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(scan_cache, "_SETTLED", -1)
    return out


@pytest.fixture
def scan(tmp_path: Path) -> Scan:
    """Scans all files of `tmp_path/data`."""
    source = SourceConfig(name="s", format="text", path=(str(tmp_path / "data"),))

    def scanned(**options: Any) -> list[InputFile]:
        return scan_inputs([source], tmp_path, LocalStore(tmp_path / "cache"), **options)

    return scanned


def write(path: Path, word: str, rows: int) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"text": f"{word} {number:05}"}) + "\n" for number in range(rows)).encode()
    path.write_bytes(gzip.compress(lines, mtime=0) if path.suffix == ".gz" else lines)


def test_what_is_as_it_was_is_not_read_again(tmp_path: Path, read: list[str], scan: Scan) -> None:
    sizes = {"a.jsonl": 3, "b.jsonl": 3, "c.jsonl": 100, "d.jsonl.gz": 100, "e.jsonl": 3}
    for name, rows in sizes.items():
        write(tmp_path / "data" / name, "same", rows)
    first = scan()
    assert sorted(read) == sorted(sizes)
    assert len(list((tmp_path / "cache" / "scans").iterdir())) == 3, "small neighbours share a note"
    read.clear()
    assert scan() == first
    assert read == []


@pytest.mark.parametrize("name", ["c.jsonl", "d.jsonl.gz"])
def test_a_change_of_the_same_size_and_time_is_noticed(tmp_path: Path, read: list[str], scan: Scan, name: str) -> None:
    path = tmp_path / "data" / name
    write(path, "before", 100)
    (before,) = scan()
    kept, stat = path.read_bytes(), path.stat()
    write(path, "behind", 100)
    assert (len(path.read_bytes()) == len(kept)) or path.suffix == ".gz"
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (after,) = scan()
    assert after.hash != before.hash
    path.write_bytes(kept)
    assert scan()[0].hash == before.hash
    assert read == [name] * 3


def test_a_file_that_was_just_written_is_not_noted(
    tmp_path: Path, read: list[str], scan: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_cache, "_SETTLED", 10**18)
    write(tmp_path / "data" / "a.jsonl", "new", 3)
    assert scan() == scan()
    assert read == ["a.jsonl"] * 2


def test_a_forged_note_leads_nowhere_else(tmp_path: Path, read: list[str]) -> None:
    url = "memory://forged/a.jsonl"
    fsspec.filesystem("memory").pipe_file("/forged/a.jsonl", b'{"text": "ours"}\n')
    source, cache = SourceConfig(name="s", format="text", path=(url,)), LocalStore(tmp_path / "cache")
    (first,) = scan_inputs([source], tmp_path, cache)
    assert first.path.parent == tmp_path / "cache" / "remote"
    (note,) = (tmp_path / "cache" / "scans").iterdir()
    secret = tmp_path / "secret"
    secret.write_bytes(b'{"text": "away"}\n')
    noted = unseal(note.read_bytes(), f"scans/{note.name}")
    assert noted is not None
    for path in (secret, Path(".."), Path("../secret"), first.path.parent / ".." / ".." / "secret"):
        note.write_bytes(seal(noted.replace(str(first.path).encode(), str(path).encode()), f"scans/{note.name}"))
        assert scan_inputs([source], tmp_path, cache) == [first]
    note.write_bytes(seal(noted, f"scans/{note.name}"))
    assert scan_inputs([source], tmp_path, cache) == [first]
    assert read == [first.path.name] * 5, "only the note as it was is believed"
    first.path.unlink()
    first.path.symlink_to(secret)
    (again,) = scan_inputs([source], tmp_path, cache)
    assert again.hash == first.hash
    assert again.path == first.path
    assert not first.path.is_symlink()
