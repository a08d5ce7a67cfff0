"""The finished model in a folder of its own: weights, configuration, tokenizer and chat template."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError
from ...schemas.fingerprint import hash_bytes
from ...schemas.jsontext import parse_json
from ..files import LocalFiles
from ..rows import PackedRows

_LOG = logging.getLogger(__name__)
_REQUEST = "_run/request.json"
"""Where a run notes the tokenizer's folder and template, for this machine."""
_TEMPLATE_BYTES = 1 << 20


Template = tuple[str, str]
"""A chat template that replaced the tokenizer's own, as a run noted it: its text, the path of a file or the name of one
of the tokenizer's own; and the BLAKE3 hash of its text."""


def find_tokenizer(given: Path | None, rows: PackedRows) -> tuple[Path, Template | None] | None:
    """The tokenizer's folder and the chat template that replaces its own; None if this machine does not have it.

    The dataset's notes may come from elsewhere. A file that they name becomes the template only if its text has the
    hash in the manifest: no other file of this machine may get into the export.

    Args:
        given: the folder that the configuration names.
        rows: the training data, whose run noted what it used.
    """
    if given is not None:
        return given, None
    if not isinstance(rows.files, LocalFiles):
        return None
    try:
        noted = parse_json(rows.files.read(_REQUEST))["tokenizer"]
        folder = Path(noted["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the model is exported alone, with a warning
    if not folder.is_dir():
        return None
    named = noted.get("chat_template")
    return folder, (str(named), str(rows.manifest.plan["tokenizer"]["template"])) if named else None


def export_model(trainer: Any, folder: Path, found: tuple[Path, Template | None] | None) -> None:
    """Write the model that a trainer holds, and its tokenizer. Every rank calls it: weights may be sharded.

    Args:
        found: see `find_tokenizer`.

    Raises:
        ConfigError: transformers cannot load the tokenizer.
    """
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
        if found is None:
            _LOG.warning(
                "the tokenizer that packed the data is not on this machine, so %s holds the model alone; name its "
                "folder with tokenizer:",
                folder,
            )
        else:
            _export_tokenizer(*found, folder)
    trainer.accelerator.wait_for_everyone()


def _export_tokenizer(home: Path, template: Template | None, folder: Path) -> None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(home), trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"tokenizer: transformers cannot load {home}: {error}") from error
    if template is not None:
        tokenizer.chat_template = template_text(template, tokenizer.chat_template)
    tokenizer.save_pretrained(str(folder))


def template_text(template: Template, own: Any) -> Any:
    """The text with the noted hash; else the tokenizer's own.

    Args:
        own: the tokenizer's template, or several by their names.
    """
    named, wanted = template
    texts = [named]
    if isinstance(own, dict) and named in own:
        texts.append(str(own[named]))
    if "{" not in named and Path(named).is_file():
        with suppress(OSError, ValueError), Path(named).open("rb") as file:
            texts.append(file.read(_TEMPLATE_BYTES).decode())
    for text in texts:
        if hash_bytes(text.encode()) == wanted:
            return text
    _LOG.warning("the chat template %r that packed the data was not found; the tokenizer's own is exported", named)
    return own
