"""Notes of scans: an unchanged source is not read again, and every other one is."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from packtrain.pipeline.inputs import scan as scan_module
from packtrain.pipeline.inputs.blocks import InputFile
from packtrain.pipeline.inputs.scan import scan_inputs
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.sealed_notes import seal, unseal
from packtrain.schemas.config.config import SourceConfig

Scan = Callable[[], list[InputFile]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are really scanned. Files count as settled as soon as they are written."""
    out: list[str] = []
    scan = scan_module.scan_file

    def counted(source: str, path: Path, *more: Any) -> InputFile:
        out.append(path.name)
        return scan(source, path, *more)

    monkeypatch.setattr(scan_module, "scan_file", counted)
    monkeypatch.setattr(scan_module, "_SETTLED_NANOSECONDS", -(10**18))
    return out


@pytest.fixture
def scan(tmp_path: Path) -> Scan:
    """Scans all files of `tmp_path/data`."""
    source = SourceConfig(name="s", format="text", path=(str(tmp_path / "data"),))
    return lambda: scan_inputs([source], tmp_path, LocalStore(tmp_path / "cache"))


def write(path: Path, word: str) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"text": f"{word} {number:05}"}) + "\n" for number in range(100)).encode()
    path.write_bytes(gzip.compress(lines, mtime=0) if path.suffix == ".gz" else lines)


def set_back(path: Path, before: os.stat_result) -> None:
    """Its times as before, but for that of the change, which moves in steps of some milliseconds."""
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_what_is_as_it_was_is_not_read_again(tmp_path: Path, read: list[str], scan: Scan) -> None:
    for name in ("a.jsonl", "b.jsonl.gz"):
        write(tmp_path / "data" / name, "same")
    first = scan()
    assert sorted(read) == ["a.jsonl", "b.jsonl.gz"]
    assert scan() == first
    assert len(read) == 2
    (block,) = first[1].blocks
    assert block.spooled is not None
    block.spooled.unlink()
    assert scan() == first
    assert block.spooled.exists()
    assert len(read) == 4


@pytest.mark.parametrize("name", ["c.jsonl", "d.jsonl.gz"])
def test_a_change_of_the_same_size_and_time_is_noticed(tmp_path: Path, read: list[str], scan: Scan, name: str) -> None:
    path = tmp_path / "data" / name
    write(path, "before")
    (before,) = scan()
    kept, stat = path.read_bytes(), path.stat()
    write(path, "behind")
    assert (len(path.read_bytes()) == len(kept)) or path.suffix == ".gz"
    set_back(path, stat)
    (after,) = scan()
    assert after.hash != before.hash
    stat = path.stat()
    path.write_bytes(kept)
    set_back(path, stat)
    assert scan()[0].hash == before.hash
    assert len(read) == 3


def test_a_file_that_was_just_written_is_not_noted(
    tmp_path: Path, read: list[str], scan: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "_SETTLED_NANOSECONDS", 10**18)
    write(tmp_path / "data" / "a.jsonl", "new")
    assert scan() == scan()
    assert len(read) == 2


def test_a_forged_note_leads_nowhere_else(tmp_path: Path, read: list[str]) -> None:
    url = "memory://forged/a.jsonl"
    fsspec.filesystem("memory").pipe_file("/forged/a.jsonl", b'{"text": "ours"}\n')
    source, cache = SourceConfig(name="s", format="text", path=(url,)), LocalStore(tmp_path / "cache")
    (first,) = scan_inputs([source], tmp_path, cache)
    assert first.path.is_relative_to(tmp_path / "cache" / "copies")
    (note,) = (tmp_path / "cache" / "scans").iterdir()
    noted = unseal(note.read_bytes(), f"scans/{note.name}")
    assert noted is not None
    secret = tmp_path / "secret"
    secret.write_bytes(b'{"text": "away"}\n')
    for path in (secret, Path(".."), Path("../secret")):
        note.write_bytes(seal(noted.replace(str(first.path).encode(), str(path).encode()), f"scans/{note.name}"))
        assert scan_inputs([source], tmp_path, cache) == [first]
    assert len(read) == 1
