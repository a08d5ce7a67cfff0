"""Datasets by name, loaded by the `datasets` library in a separate process, which is this module as a program.

The library takes seconds to import, reads its settings from the environment at import, and starts threads.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.errors import ConfigError
from ...schemas.fingerprint import fingerprint
from ..store.checksummed import get_note, put_note
from ..store.local import LocalStore
from .found import Found, choose_split

PATIENCE = 5
"""Seconds within which the hub must answer."""
_LOADED = "hub"
"""The cache folder of what the library has made, and of notes about it for runs without a connection."""
_SETTINGS = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_ETAG_TIMEOUT": str(2 * PATIENCE),
    "HF_HUB_DOWNLOAD_TIMEOUT": "60",
}


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
    question: dict[str, Any] = {"name": plain, "subset": subset, "split": split, "revision": revision or None}
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
        files = _asked({**question, "cache": str(cache / _LOADED)}, where)
        if all(file.is_relative_to(cache / _LOADED) for file in files):
            put_note(store, note, _Loaded([file.relative_to(cache).as_posix() for file in files]))
    out = []
    for file in files:
        stat = file.stat()
        alias = f"{plain}/{_label(file, Path(plain).name)}"
        origin = f"hf://{name}/{file.name}"
        out.append(Found(str(file), stat.st_size, stat.st_ctime_ns, alias, origin))
    return out


def _asked(question: dict[str, Any], where: str) -> list[Path]:
    """What the separate process answers."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__, json.dumps(question)],
        env=os.environ | _SETTINGS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    name = question["name"]
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        answer = {}
    if "files" in answer:
        return [Path(file) for file in answer["files"]]
    if "splits" in answer:
        choose_split(answer["splits"], question["split"], where, name)
    said = str(answer.get("error") or done.stderr.strip()[-500:] or f"exit code {done.returncode}")
    raise ConfigError(
        f"{where}: the datasets library cannot load {name} ({said}); check the name, `subset` and `split`, and log in "
        "if it is not public"
    )


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


# The separate process


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    """`files` of the split, or `splits` to choose from. A JSON file is read as it is: by default the library makes
    other rows of what looks like an agent's trace.
    """
    import datasets

    options = {"name": question["subset"], "revision": question["revision"], "cache_dir": question["cache"]}
    try:
        loaded = datasets.load_dataset(question["name"], **options, parse_agent_traces=False)
    except ValueError as error:  # the files are not JSON
        if "'parse_agent_traces' key" not in str(error):
            raise
        loaded = datasets.load_dataset(question["name"], **options)
    splits = [str(name) for name in loaded]
    split = question["split"] or (splits[0] if len(splits) == 1 else None)
    if split not in splits:
        return {"splits": splits}
    return {"files": [file["filename"] for file in loaded[split].cache_files]}


if __name__ == "__main__":
    try:
        print(json.dumps(_answer(json.loads(sys.argv[1]))))
    except Exception as error:  # the parent reports any error of the library
        print(json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]}))
        sys.exit(1)
