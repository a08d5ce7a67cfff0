"""A run's note about itself, `_run/run.json`: the tokenizer and the chat template that it used.

It is not part of the dataset, holds paths, and may come from another person: nothing that it names is run or written.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from ...schemas.config.config import RunConfig
from ...schemas.errors import StoreError
from ..encode.tokenizer import find_tokenizer
from ..store.open_store import Store
from ..store.sealed_notes import get_note, put_note

RUN = "_run/run.json"


class _Run(msgspec.Struct):
    tokenizer: str
    """The tokenizer's folder."""
    chat_template: str | None
    """The chat template that replaces the tokenizer's own: its file, or its text."""


def remember(out: Store, config: RunConfig, base: Path) -> None:
    """Write the note of a run.

    Args:
        base: where relative paths of the configuration start.
    """
    folder, template = find_tokenizer(config.tokenizer.path, base), config.tokenizer.chat_template
    if template and "{" not in template and (base / template).is_file():
        template = str((base / template).absolute())
    put_note(out, RUN, _Run(str(folder.absolute()), template))


def tokenizer_folder(out: Store) -> Path | None:
    """The folder of the tokenizer that a run used; None if this machine does not have it."""
    with suppress(StoreError):
        note = get_note(out, RUN, _Run)
        return Path(note.tokenizer) if note is not None and Path(note.tokenizer).is_dir() else None
    return None
