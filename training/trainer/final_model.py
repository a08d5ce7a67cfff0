"""The tokenizer and chat template of the data, found for checkpoints and the finished model; and that model itself."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError
from ...schemas.fingerprint import hash_bytes
from ...schemas.jsontext import parse_json
from ..packed_rows import PackedRows

_LOG = logging.getLogger(__name__)
_RUN = "_run/run.json"
"""Where a run notes the tokenizer's folder and its own chat template, for this machine."""
_TEMPLATE_BYTES = 1 << 20


def find_tokenizer(given: Path | None, rows: PackedRows) -> Any:
    """The tokenizer of transformers that packed the data, with the chat template that did. None, with a warning, if
    this machine does not have it.

    The dataset's notes may come from elsewhere. A file that they name becomes the template only if its text has the
    hash in the manifest: no other file of this machine may get into a checkpoint.

    Args:
        given: the folder that the configuration names.
        rows: the training data, whose run noted what it used.

    Raises:
        ConfigError: there is no such folder, or transformers cannot load the tokenizer.
    """
    folder, template = given, None
    if given is not None and not given.is_dir():
        raise ConfigError(f"tokenizer: there is no folder {given}; check the spelling")
    if folder is None and rows.files.is_local:
        with suppress(OSError, ValueError, KeyError, TypeError):
            noted = parse_json(rows.files.read(_RUN))
            folder, template = Path(noted["tokenizer"]), noted["chat_template"]
    if folder is None or not folder.is_dir():
        _LOG.warning(
            "the tokenizer that packed the data is not on this machine, so checkpoints and the finished model hold "
            "none; name its folder with tokenizer:"
        )
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"tokenizer: transformers cannot load {folder}: {error}") from error
    if template:
        wanted = str(rows.manifest.plan["tokenizer"]["template"])
        tokenizer.chat_template = _template_text(str(template), wanted, tokenizer.chat_template)
    return tokenizer


def refuse_other_tokenizer(model: Path, tokenizer: Any) -> None:
    """Refuse a model whose folder holds another tokenizer than that of the data.

    Raises:
        ConfigError: names a token that has another id there.
    """
    from tokenizers import Tokenizer

    file = model / "tokenizer.json"
    if not file.is_file():
        return
    try:
        theirs = Tokenizer.from_file(str(file)).get_vocab()
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{file} cannot be read as a tokenizer: {error}") from error
    for token, number in tokenizer.get_vocab().items():
        if theirs.get(token, number) != number:
            raise ConfigError(
                f"model: the token {token!r} is {theirs[token]:,} for the model in {model}, and {number:,} in the "
                "data: it was packed with another tokenizer. Pack it with the model's, or take another model"
            )


def export_model(trainer: Any, folder: Path) -> None:
    """Write the model that a trainer holds, and its tokenizer. Every rank calls it: weights may be sharded."""
    config = trainer.model.config
    cache, config.use_cache = getattr(config, "use_cache", None), True  # off for training only
    try:
        if trainer.is_fsdp_enabled:  # where `save_model` writes pieces, or nothing
            state = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # every rank gives; whole on the first
            if trainer.args.should_save:
                trainer._save(str(folder), state_dict=state)
        else:
            trainer.save_model(str(folder))
    finally:
        config.use_cache = cache
    if trainer.args.should_save:
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle of this machine's paths
        if trainer.tokenizer is not None:
            trainer.tokenizer.save_pretrained(str(folder))
    trainer.accelerator.wait_for_everyone()


def _template_text(named: str, wanted: str, own: Any) -> Any:
    """The text with the hash that the manifest names; else the tokenizer's own.

    Args:
        named: its text, or the path of a file.
        own: the tokenizer's template, or several by their names.
    """
    texts = [named]
    if "{" not in named and Path(named).is_file():
        with suppress(OSError, ValueError), Path(named).open("rb") as file:
            texts.append(file.read(_TEMPLATE_BYTES).decode())
    for text in texts:
        if hash_bytes(text.encode()) == wanted:
            return text
    _LOG.warning("the chat template %r that packed the data was not found; the tokenizer's own is exported", named)
    return own
