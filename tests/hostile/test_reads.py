"""Every read of a file that somebody else may have written goes through `schemas/files/foreign.py`."""

import ast
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.files.foreign import map_regular, open_regular, read_lines, read_regular, read_regular_text

from tests.support.hostile import patience
from tests.support.sources import trees

READERS = frozenset(
    (
        *("open", "fdopen", "read_text", "read_bytes", "copyfile", "memmap", "fromfile", "mmap"),
        *("memory_map", "OSFile", "ParquetFile", "from_file", "from_pretrained", "safe_open", "load_file"),
        *("load_peft_weights", "Unpickler", "ZipFile", "CompressedInputStream"),
    )
)
"""Names of functions and methods that open a file which they are given."""
LOADERS = {"load": {"json", "pickle", "torch", "np", "numpy", "yaml"}, "read_table": {"pq"}, "copy": {"shutil"}}
"""Names that mean so only as functions of these modules."""
ONE = "schemas/files/foreign.py"
REMOTE = ("schemas/files/remote.py", "schemas/files/copy_cache.py", "schemas/files/web.py")
"""The client of servers and its cache, which have limits of their own."""

OURS = "written by this very run or process"
CHECKED = "after check_model_folder, which opens each file in the one way"
BYTES = "of bytes that were read in the one way"
LOCKED = "a file of ours to write, opened without following links"
KERNEL = "the kernel's own, about this machine"
USERS = "named by the user of this machine, who may name a pipe; so many characters and no more"

ALLOWED: dict[tuple[str, str], tuple[int, str]] = {
    ("pipeline/cli/main.py", "open"): (2, "the null device"),
    ("pipeline/cli/main.py", "fdopen"): (1, "the null device"),
    ("pipeline/yaml_file.py", "open"): (1, USERS),
    ("pipeline/encode/ask_transformers.py", "from_pretrained"): (1, "of a copy of what was read in the one way"),
    ("pipeline/encode/preload.py", "read_bytes"): (1, "a pipe of ours"),
    ("pipeline/execute/executor.py", "read_text"): (1, KERNEL),
    ("pipeline/execute/template_watchdog.py", "open"): (1, KERNEL),
    ("pipeline/export/foreign_formats.py", "OSFile"): (1, OURS),
    ("pipeline/export/foreign_formats.py", "open"): (5, OURS),
    ("pipeline/inputs/source_formats.py", "read_text"): (1, "the user's own reader, which is run"),
    ("pipeline/inputs/spool.py", "CompressedInputStream"): (1, "of a file that was opened in the one way; in pieces"),
    ("pipeline/inputs/tables.py", "ParquetFile"): (1, BYTES),
    ("schemas/files/parquet_sizes.py", "ParquetFile"): (1, BYTES),
    ("pipeline/judge/inside.py", "fdopen"): (1, "inside of the sandbox"),
    ("pipeline/judge/inside.py", "load"): (1, "inside of the sandbox"),
    ("pipeline/judge/sandbox.py", "read_text"): (1, "the package's own"),
    ("pipeline/pack/outcomes.py", "memmap"): (1, OURS),
    ("pipeline/pack/shard.py", "fromfile"): (1, OURS),
    ("pipeline/pack/spools.py", "memmap"): (3, OURS),
    ("pipeline/pack/table.py", "memmap"): (1, OURS),
    ("pipeline/pack/units.py", "memmap"): (1, OURS),
    ("pipeline/pack/table.py", "memory_map"): (1, OURS),
    ("pipeline/store/appended.py", "fdopen"): (1, LOCKED),
    ("pipeline/store/appended.py", "open"): (1, LOCKED),
    ("pipeline/store/run_lock.py", "open"): (2, LOCKED),
    ("pipeline/store/local.py", "open"): (2, "a draft of ours, and a folder to sync"),
    ("pipeline/store/local.py", "read_bytes"): (1, KERNEL),
    ("schemas/dataset/document_table.py", "ParquetFile"): (1, BYTES),
    ("schemas/dataset/files.py", "mmap"): (1, BYTES),
    ("schemas/dataset/files.py", "open"): (1, "a copy of a remote file, in the cache of the machine"),
    ("schemas/files/lock.py", "open"): (1, LOCKED),
    ("training/models/adapter.py", "from_pretrained"): (1, CHECKED),
    ("training/models/adapter.py", "load_peft_weights"): (1, CHECKED),
    ("training/launch/__init__.py", "read_text"): (1, "the package's own"),
    ("training/models/model.py", "from_pretrained"): (2, CHECKED),
    ("training/models/tokenizer.py", "from_pretrained"): (1, CHECKED),
    ("training/preference/reference.py", "open"): (1, "a draft of ours, which is never a link: it must not exist"),
    ("training/trainer/checkpoint.py", "open"): (2, LOCKED),
    ("training/trainer/checkpoint.py", "safe_open"): (1, "a file that its checkpoint's marker lists; no code in it"),
}
"""(module, function) → how many calls of it there are, and why they need no limits."""


def calls() -> Iterator[tuple[str, str, int]]:
    """(module, function, line) of every call that may open a file."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            loads = isinstance(owner, ast.Name) and owner.id in LOADERS.get(name, ())
            if str(path) not in (ONE, *REMOTE) and (name in READERS or loads):
                yield str(path), name, node.lineno


def test_every_read_goes_through_the_one_function() -> None:
    """A new call is not forbidden: read in the one way, or say here why not."""
    found = defaultdict[tuple[str, str], list[int]](list)
    for path, name, line in calls():
        found[path, name].append(line)
    assert len(found) > 10, "nothing was looked at"
    wrong = {place: lines for place, lines in found.items() if ALLOWED.get(place, (0, ""))[0] != len(lines)}
    assert not wrong, f"opened elsewhere: {wrong}"
    assert set(ALLOWED) <= set(found), "no longer there"


# The one way itself


def all_lines(path: str | Path) -> list[bytes]:
    """What `read_lines` gives."""
    return list(read_lines(path))


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    folder, pipe, loop = tmp_path / "folder", tmp_path / "pipe", tmp_path / "loop"
    folder.mkdir()
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    zero = tmp_path / "zero"
    zero.symlink_to("/dev/zero")
    places: list[str | Path] = [
        folder,
        pipe,
        loop,
        zero,
        tmp_path / "no",
        f"{tmp_path}/a\0b",
        "/proc/self/status",
        "/dev/zero",
    ]
    reads: tuple[Callable[[str | Path], Any], ...] = (open_regular, map_regular, read_regular_text, all_lines)
    with patience(60):
        for place in places:
            for read in reads:
                with pytest.raises(OSError, match=r".") as told:
                    read(place)
                assert told.value.strerror


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_regular(file, 5) == b"12345"
    with pytest.raises(OSError, match=r"it has 5 bytes, and may have 4"):
        read_regular(file, 4)
    os.truncate(file, 1 << 40)
    with patience(60), pytest.raises(OSError, match="and may have"):
        read_regular(file, 1 << 20)


def test_a_link_out_of_its_folder_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "outside").write_text("secret")
    (folder / "inside").write_text("good")
    (folder / "out").symlink_to(tmp_path / "outside")
    (folder / "in").symlink_to(folder / "inside")
    assert read_regular(folder / "in", 99, inside=[folder]) == b"good"
    assert read_regular(folder / "out", 99) == b"secret", "where it may lead anywhere"
    with pytest.raises(OSError, match="is a link that leads out of"):
        read_regular(folder / "out", 99, inside=[folder])
    assert read_regular(folder / "out", 99, inside=[folder, tmp_path]) == b"secret"
