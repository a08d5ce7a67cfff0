"""Finds a tokenizer: a folder, or the snapshot of a hub's repository in the local Hugging Face cache."""

import re
from contextlib import suppress
from pathlib import Path

from ....schemas.config.hints import did_you_mean
from ....schemas.errors import TokenizerError

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
