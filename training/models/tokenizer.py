"""The tokenizer of a training: the one that packed the data, which is saved with the model."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError
from ...schemas.files.foreign import LISTING_BYTES, read_regular_text
from ...schemas.files.model_folder import check_model_folder
from ...schemas.fingerprint import hash_bytes
from ...schemas.jsontext import parse_json
from ..packed_rows import PackedRows
from .model import message_of

_LOG = logging.getLogger(__name__)
_RUN = "_run/run.json"
"""Where a run notes the tokenizer's folder, and a chat template that replaces the tokenizer's own."""


def find_tokenizer(configured: Path | None, rows: PackedRows) -> Any:
    """The tokenizer of transformers that packed the data, with the chat template that did. None, with a warning, if
    this machine does not have it.

    The dataset's notes may come from elsewhere: their template counts only if it has the hash in the manifest.

    Args:
        configured: the folder that the configuration names; None if it names none.
        rows: the training data, whose run noted what it used.

    Raises:
        ConfigError: there is no such folder, or transformers cannot load the tokenizer.
    """
    folder = configured
    template = b""  # the chat template that replaced the tokenizer's own; empty if none did
    if configured is not None and not configured.is_dir():
        raise ConfigError(f"tokenizer: there is no folder {configured}; check the spelling")
    if rows.files.is_local:  # the folder of another machine says nothing here
        # Without the note, or with a damaged one, only the configured folder is left.
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = parse_json(rows.files.read(_RUN) or b"")
            folder = configured or Path(note["tokenizer"])
            template = str(note["chat_template"] or "").encode()
    if folder is None or not folder.is_dir():
        _LOG.warning(
            "the tokenizer that packed the data is not on this machine, so checkpoints and the finished model hold "
            "none; name its folder with tokenizer:"
        )
        return None
    from transformers import AutoTokenizer

    try:
        check_model_folder(folder)
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError) as error:
        file = getattr(error, "filename", None)
        problem = f"{file}: {getattr(error, 'strerror', None)}" if file else message_of(error)
        raise ConfigError(f"tokenizer: transformers cannot load {folder}: {problem}") from error
    packed_with = rows.manifest.plan.get("tokenizer", {}).get("template")  # the hash of the template's text
    if hash_bytes(template) == packed_with:
        tokenizer.chat_template = template.decode()
    # Nothing to say if no template was used, or the tokenizer's own is the one.
    elif packed_with and hash_bytes(str(tokenizer.chat_template).encode(errors="replace")) != packed_with:
        _LOG.warning("the chat template that packed the data was not found; the tokenizer's own is exported")
    return tokenizer


def refuse_other_tokenizer(model: Path, tokenizer: Any) -> None:
    """Refuse a model whose folder holds another tokenizer than that of the data: the same ids would be other
    tokens to it, and it would be trained all the same.

    Args:
        model: its folder. Without a tokenizer.json there, nothing is compared.
        tokenizer: that of the data.

    Raises:
        ConfigError: names a token that has another id there.
    """
    from tokenizers import Tokenizer

    file = model / "tokenizer.json"
    if not file.is_file():
        return
    try:
        model_ids = Tokenizer.from_str(read_regular_text(file, limit=LISTING_BYTES)).get_vocab()
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{file} cannot be read as a tokenizer: {error}") from error
    for token, data_id in tokenizer.get_vocab().items():
        if model_ids.get(token, data_id) != data_id:
            raise ConfigError(
                f"model: the token {token!r} is {model_ids[token]:,} for the model in {model}, and {data_id:,} in the "
                "data: it was packed with another tokenizer. Pack it with the model's, or take another model"
            )
