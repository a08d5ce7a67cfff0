"""The files of a folder that transformers and peft open: a model's, a tokenizer's, an adapter's.

These libraries open whatever has the right name: they would wait for a named pipe, or read a device without end. So the
files are checked here before, and small ones are read here.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .foreign import LISTING_BYTES, open_regular, read_regular

SMALL = frozenset({".json", ".jinja", ".model", ".txt", ".bpe", ".tiktoken"})
"""Suffixes of files with settings, vocabularies and templates."""
WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth"})
"""Suffixes of files with weights, of any size."""
_SUBFOLDERS = ("additional_chat_templates",)
"""Folders in a model's folder from which transformers reads files, too."""


def allowed_folders(folder: Path) -> list[Path]:
    """Where the files of a folder may lie: in it, or in the cache of the hub, whose snapshots are folders of links."""
    folders = [folder]
    # `models--org--name/snapshots/REVISION/config.json` is a link to `models--org--name/blobs/HASH`.
    real_folder = folder.resolve()
    if real_folder.parent.name == "snapshots":
        folders.append(real_folder.parent.parent)
    hub_cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HF_HOME")
    if hub_cache:
        folders.append(Path(hub_cache))
    with suppress(RuntimeError):  # there is no home
        folders.append(Path.home() / ".cache" / "huggingface" / "hub")
    return folders


def check_model_folder(folder: Path) -> None:
    """Refuse a folder with a file that transformers or peft may open and must not.

    Raises:
        OSError: a file is not regular, too large, or a link that leads out of the allowed folders; names it.
    """
    folders = allowed_folders(folder)
    for path in _files(folder, SMALL | WEIGHTS):
        limit = None if path.suffix in WEIGHTS else LISTING_BYTES
        open_regular(path, limit=limit, inside=folders).close()


def read_small_files(folder: Path) -> dict[str, bytes]:
    """The content of the small files of a folder, by their names below it, in order; weights are not among them.

    Raises:
        OSError: a file is not regular, cannot be read, or is a link that leads out of the allowed folders, or all of
            them have more than `LISTING_BYTES`; names the file.
    """
    folders = allowed_folders(folder)
    bytes_left = LISTING_BYTES
    contents: dict[str, bytes] = {}
    for path in _files(folder, SMALL):
        content = read_regular(path, bytes_left, inside=folders)
        contents[path.relative_to(folder).as_posix()] = content
        bytes_left -= len(content)
    return contents


def _files(folder: Path, suffixes: frozenset[str]) -> Iterator[Path]:
    """The files with these suffixes, of a folder and of its subfolders that transformers reads. Links to nothing are
    left out: transformers takes them for missing.
    """
    for parent in (folder, *(folder / name for name in _SUBFOLDERS)):
        if not parent.is_dir():
            continue
        for path in sorted(parent.iterdir()):
            # A link to itself does not "exist" either, but is damage, which opening it reports.
            if path.suffix in suffixes and not path.is_dir() and (path.exists() or _is_endless_link(path)):
                yield path


def _is_endless_link(path: Path) -> bool:
    """Whether a path is a link that leads to itself."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
