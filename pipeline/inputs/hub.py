"""Datasets of the Hugging Face Hub, loaded by the `datasets` library."""

import os
import urllib.error
import urllib.request
from pathlib import Path

import msgspec

from ...schemas.errors import ConfigError
from ...schemas.fingerprint import fingerprint
from ..store.local import LocalStore
from ..store.sealed_notes import get_note, put_note
from .blocks import Found, choose_split

_PATIENCE = 5
"""Seconds within which the hub must answer."""
_LOADED = "hub"
"""The cache folder of what the library has made, and of notes about it for runs without a connection."""


class _Loaded(msgspec.Struct):
    files: list[str]
    """Names in the cache."""


def load(name: str, subset: str | None, split: str | None, cache: Path, where: str) -> list[Found]:
    """The Arrow files of one split of a dataset.

    Without a connection, these are the files that the same question was answered with before. The library itself would
    give whatever revision it loaded last.

    Args:
        name: `owner/name`, optionally followed by `@revision`.
        where: the key of the configuration, for messages.

    Raises:
        ConfigError: there is no such dataset, subset or split, or the hub is unreachable and the dataset is not cached.
    """
    plain, _, revision = name.partition("@")
    question = {"name": plain, "subset": subset, "split": split, "revision": revision or None}
    store, note = LocalStore(cache), f"{_LOADED}/{fingerprint(question)}.json"
    if not _reachable():
        held = get_note(store, note, _Loaded)
        files = [store.path(name) for name in held.files] if held is not None else []
        if not files or any(file.is_symlink() or not file.is_file() for file in files):
            raise ConfigError(
                f"{where}: the hub cannot be reached, and the cache does not have {plain} as it is asked for here; "
                "load it with a connection, save it with `save_to_disk`, and give that folder here"
            )
    else:
        files = _load(plain, revision or None, subset, split, cache / _LOADED, where)
        if all(file.is_relative_to(cache / _LOADED) for file in files):
            put_note(store, note, _Loaded([file.relative_to(cache).as_posix() for file in files]))
    out = []
    for file in files:
        stat = file.stat()
        alias = f"{plain}/{_label(file, Path(plain).name)}"
        out.append(Found(str(file), stat.st_size, stat.st_ctime_ns, alias, f"hf://{name}/{file.name}"))
    return out


def _load(
    name: str, revision: str | None, subset: str | None, split: str | None, cache: Path, where: str
) -> list[Path]:
    """The files that the library makes. JSON is read as it is: by default it makes other rows of what looks like an
    agent's trace.
    """
    import datasets  # takes seconds
    import huggingface_hub.utils

    # A terminal shows packtrain's own.
    datasets.disable_progress_bars()
    huggingface_hub.utils.disable_progress_bars()
    options = {"name": subset, "revision": revision, "cache_dir": str(cache)}
    try:
        try:
            loaded = datasets.load_dataset(name, **options, parse_agent_traces=False)
        except ValueError as error:  # the files are not JSON
            if "'parse_agent_traces' key" not in str(error):
                raise
            loaded = datasets.load_dataset(name, **options)
    except Exception as error:  # the library's own, and those of what it uses
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]
        raise ConfigError(
            f"{where}: the datasets library cannot load {name} ({said}); check the name, `subset` and `split`, and log "
            "in if it is not public"
        ) from error
    chosen = choose_split([str(one) for one in loaded], split, where, name)
    return [Path(file["filename"]) for file in loaded[chosen].cache_files]


def _label(file: Path, stem: str) -> str:
    """`name-train`, with a number if there are several files; shorter than the library's own file names."""
    parts = file.stem.split("-")
    numbered = len(parts) > 3 and parts[-2] == "of"
    return "-".join([stem, *(parts[-4:-2] if numbered else parts[-1:])])


def _reachable() -> bool:
    """Whether the hub answers at all. The library reports missing names and permissions itself."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urllib.request.urlopen(f"{endpoint}/api/datasets?limit=1", timeout=_PATIENCE):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
