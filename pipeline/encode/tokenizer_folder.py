"""Finds a tokenizer's folder, or the snapshot of a hub's repository in the local Hugging Face cache, and reads what
lies beside the tokenizer.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.errors import TokenizerError, did_you_mean

GENERATION_CONFIG = "generation_config.json"
_MAX_BYTES = 1 << 20
_MAX_STOPS = 64
_MAX_ID = (1 << 31) - 1

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


def find_tokenizer(path: str, base: Path) -> Path:
    """Return the folder of `tokenizer.path`. An existing folder takes precedence over a name on the hub.

    Args:
        path: a folder, or the name of a repository, such as `Qwen/Qwen3-8B`. Nothing is downloaded.
        base: where relative paths start.

    Raises:
        TokenizerError: it is neither; the message says how to fetch it.
    """
    folder = (base / path).absolute()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise TokenizerError(f"tokenizer.path: {folder} is a file; give the tokenizer's folder")
    if not _HUB_NAME.fullmatch(path):
        raise TokenizerError(
            f"tokenizer.path: the folder {folder} does not exist{_near(folder)}; nothing is downloaded: save a hub's "
            "tokenizer with save_pretrained first"
        )
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    for name in _FILES:
        found = try_to_load_from_cache(path, name)
        if isinstance(found, str):
            return Path(found).parent
    raise TokenizerError(
        f"tokenizer.path: the folder {folder} does not exist{_near(folder)}, and the Hugging Face cache "
        f"{HF_HUB_CACHE} holds no "
        f'tokenizer of {path}. Nothing is downloaded; this fetches it: python -c "from transformers import '
        f"AutoTokenizer; AutoTokenizer.from_pretrained('{path}')\""
    )


def _near(folder: Path) -> str:
    """` (did you mean tokenizer?)`, if a folder beside it has a similar name and a tokenizer; else ""."""
    beside: list[str] = []
    with suppress(OSError):  # the parent folder does not exist either
        beside = [one.name for one in folder.parent.iterdir() if any((one / name).is_file() for name in _FILES)]
    hint = did_you_mean(folder.name, beside)
    return f" ({hint.removeprefix('; ')})" if hint else ""


def tokenizer_name(folder: Path) -> str:
    """The tokenizer's name for messages: the folder's, or the repository's if it is a hub snapshot."""
    folder = folder.resolve()
    repository = folder.parents[1].name if len(folder.parents) > 1 else ""
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return folder.name


def generation_stops(folder: Path) -> tuple[int, ...]:
    """`eos_token_id` of a folder's generation_config.json, in the order of the file.

    The file is read as data, within limits; one that is absent or makes no sense names no stops.
    """
    try:
        with (folder / GENERATION_CONFIG).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            return ()
        found: Any = msgspec.json.decode(content)
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ()
    ids = found.get("eos_token_id") if type(found) is dict else None
    ids = ids if type(ids) is list else [ids]
    if len(ids) > _MAX_STOPS or not all(type(id) is int and 0 <= id <= _MAX_ID for id in ids):
        return ()
    return tuple(dict.fromkeys(ids))
