"""Datasets by name, loaded by the `datasets` library in a separate process.

The library takes seconds to import, reads its settings from the environment at import, and starts threads. So it runs
in a child process, whose environment says whether the hub can be reached.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError, TaskError
from ..execute.child_exit import exit_reason, out_of_memory_kills
from .find import choose_split

PATIENCE = 5
"""Seconds within which the hub must answer."""


def load(name: str, subset: str | None, split: str | None, cache: Path, where: str) -> list[tuple[Path, str]]:
    """The Arrow files of one split of a dataset, with the paths that their labels are made from.

    Args:
        name: `owner/name`, optionally followed by `@revision`, or the path of a local folder.
        where: the key of the configuration, for messages.

    Raises:
        ConfigError: there is no such dataset, subset or split, or the hub is unreachable and the dataset is not cached.
        TaskError: a signal killed the process that loads it, twice.
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
    question = {
        "name": name,
        "subset": subset,
        "split": split,
        "revision": revision or None,
        "cache": str(cache / "hub"),
    }
    kills = out_of_memory_kills()
    for _ in range(2):  # a signal may not be the dataset's fault
        done = subprocess.run(
            [sys.executable, "-P", str(Path(__file__).with_name("hub_child.py")), json.dumps(question)],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode >= 0:
            break
    else:
        raise TaskError(
            f"{where}: the process that loads {name} died twice: {exit_reason(done.returncode, kills)}. Free memory, "
            "and run the same command again"
        )
    lines = done.stdout.strip().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except ValueError:
        answer = {}
    if "files" in answer:
        stem = Path(name).name
        return [(Path(file), f"{name}/{_label(Path(file), stem)}") for file in answer["files"]]
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
