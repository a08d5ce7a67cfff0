"""Datasets by name, loaded by the `datasets` library in a separate process.

The library takes seconds to import, reads its settings from the environment at import, and starts threads. So it runs
in a child process, whose environment says whether the hub can be reached.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.errors import ConfigError, StoreError, TaskError
from ...schemas.fingerprint import fingerprint
from ...schemas.jsontext import decode_note
from ...schemas.names import check_name
from ..store.local import LocalStore
from .find import choose_split

PATIENCE = 5
"""Seconds within which the hub must answer."""
_LOADED = "hub"
"""The cache folder of what the library has made, and of notes about it for runs without a connection."""


def load(name: str, subset: str | None, split: str | None, cache: Path, where: str) -> list[tuple[Path, str]]:
    """The Arrow files of one split of a dataset, with the paths that their labels are made from.

    Args:
        name: `owner/name`, optionally followed by `@revision`, or the path of a local folder.
        where: the key of the configuration, for messages.

    Raises:
        ConfigError: there is no such dataset, subset or split, or the hub is unreachable and the dataset is not cached.
        TaskError: a signal killed the process that loads it.
    """
    name, _, revision = (name, "", "") if Path(name).is_dir() else name.partition("@")
    local = Path(name).is_dir()
    reachable = local or _reachable()
    environment = os.environ | {
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_ETAG_TIMEOUT": str(2 * PATIENCE),
        "HF_HUB_DOWNLOAD_TIMEOUT": "60",
    }
    if local or not reachable:
        environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    question: dict[str, Any] = {"name": name, "subset": subset, "split": split, "revision": revision or None}
    store, note = LocalStore(cache), f"{_LOADED}/{fingerprint(question)}.json"
    question["cache"] = str(cache / _LOADED)
    if not reachable and (kept := _kept(store, note)):
        return _labelled(kept, name)
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("hub_child.py")), json.dumps(question)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode < 0:
        killed = signal.Signals(-done.returncode).name
        raise TaskError(f"{where}: the process that loads {name} was killed by {killed}; free memory, and run again")
    lines = done.stdout.strip().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except ValueError:
        answer = {}
    if "files" in answer:
        files = [Path(file) for file in answer["files"]]
        if not local and all(file.is_relative_to(cache / _LOADED) for file in files):
            held = [file.relative_to(cache).as_posix() for file in files]
            store.replace_bytes(note, msgspec.json.encode(held))
        return _labelled(files, name)
    if "splits" in answer:
        choose_split(answer["splits"], split, where, name)
    said = str(answer.get("error") or done.stderr.strip()[-500:] or f"exit code {done.returncode}")
    if not reachable:
        raise ConfigError(
            f"{where}: the hub cannot be reached, and {name} is not in its cache; load it with a "
            f"connection, save it with `save_to_disk`, and give that folder here ({said})"
        )
    raise ConfigError(
        f"{where}: the datasets library cannot load {name} ({said}); check the name, `subset` and `split`, and log in "
        "if it is not public"
    )


def _kept(store: LocalStore, note: str) -> list[Path]:
    """The files that this question was answered with before, if all are still in the cache."""
    try:
        names = decode_note(store.read(note), list[str])
        for name in names:
            check_name(name)
    except (ValueError, StoreError):
        return []
    files = [store.path(name) for name in names]
    return files if all(file.is_file() and not file.is_symlink() for file in files) else []


def _labelled(files: list[Path], name: str) -> list[tuple[Path, str]]:
    return [(file, f"{name}/{_label(file, Path(name).name)}") for file in files]


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
        with urllib.request.urlopen(f"{endpoint}/api/datasets?limit=1", timeout=PATIENCE):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
