"""The files of a folder that transformers and peft open: a model's, a tokenizer's, an adapter's.

They open what has the right name, and wait for a named pipe or read a device without end. So the files are looked at
before, and small ones are read once, here.
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


def places_of(folder: Path) -> list[Path]:
    """Where the files of a folder may lie: in it, or in the cache of the hub, whose snapshots are folders of links."""
    places = [folder]
    real = folder.resolve()
    if real.parent.name == "snapshots":
        places.append(real.parent.parent)
    if cache := os.environ.get("HF_HUB_CACHE") or os.environ.get("HF_HOME"):
        places.append(Path(cache))
    with suppress(RuntimeError):  # there is no home
        places.append(Path.home() / ".cache" / "huggingface" / "hub")
    return places


def check_model_folder(folder: Path) -> None:
    """Refuse a folder with a file that transformers or peft may open and must not.

    Raises:
        OSError: see `open_regular`; names the file.
    """
    places = places_of(folder)
    for path in _files(folder, SMALL | WEIGHTS):
        open_regular(path, limit=None if path.suffix in WEIGHTS else LISTING_BYTES, inside=places).close()


def read_small_files(folder: Path) -> dict[str, bytes]:
    """The content of the small files of a folder, by their names below it, in order; weights are not among them.

    Raises:
        OSError: see `read_regular`; names the file. Together they have more than `LISTING_BYTES`.
    """
    places, left = places_of(folder), LISTING_BYTES
    contents: dict[str, bytes] = {}
    for path in _files(folder, SMALL):
        data = read_regular(path, left, inside=places)
        contents[path.relative_to(folder).as_posix()] = data
        left -= len(data)
    return contents


def _files(folder: Path, suffixes: frozenset[str]) -> Iterator[Path]:
    """The files of a folder with these suffixes, and of the folders that transformers reads in it; links to nothing
    are left out, as everybody leaves them out.
    """
    for above in (folder, *(folder / name for name in _SUBFOLDERS)):
        for path in sorted(above.iterdir()) if above.is_dir() else ():
            if path.suffix in suffixes and not path.is_dir() and (path.exists() or _leads_to_itself(path)):
                yield path


def _leads_to_itself(path: Path) -> bool:
    """Whether a path is a link that can be followed without end."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
