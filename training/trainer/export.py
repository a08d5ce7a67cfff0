"""The finished model in a folder of its own: weights, configuration, tokenizer and chat template."""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError
from ...schemas.fingerprint import hash_bytes
from ...schemas.jsontext import parse_json
from ..shards.dataset_rows import PackedRows
from ..shards.shard_files import LocalShardFiles

_LOG = logging.getLogger(__name__)
_REQUEST = "_run/request.json"
"""Where a run notes the tokenizer's folder and template, for this machine."""
_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class NotedTemplate:
    """A chat template that replaced the tokenizer's own, as a run noted it."""

    named: str
    """Text of the template, path of a file, or name of one of the tokenizer's own."""
    hash: str
    """BLAKE3 of the template's text."""


Found = tuple[Path, NotedTemplate | None]
"""A tokenizer's folder, and the template that replaces its own."""


def find_tokenizer(given: Path | None, rows: PackedRows) -> Found | None:
    """The tokenizer's folder and the chat template that replaces its own; None if this machine does not have it.

    The dataset's notes may come from elsewhere. A file that they name becomes the template only if its text has the
    hash in the manifest: no other file of this machine may get into the export.

    Args:
        given: the folder that the configuration names.
        rows: the training data, whose run noted what it used.

    Raises:
        ConfigError: `given` is not a folder.
    """
    if given is not None:
        if not given.is_dir():
            raise ConfigError(f"tokenizer: there is no folder {given}; check the spelling")
        return given, None
    if not isinstance(rows.files, LocalShardFiles):
        return None
    try:
        request = parse_json(rows.files.read(_REQUEST))
        noted = request["tokenizer"]
        folder = Path(noted["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the model is exported alone, with a warning
    if not folder.is_dir():
        return None
    named = noted.get("chat_template")
    template = NotedTemplate(str(named), str(rows.manifest.plan["tokenizer"]["template"])) if named else None
    return folder, template


def export_model(trainer: Any, folder: Path, found: Found | None, *, merge: bool = False) -> None:
    """Write the model that a trainer holds, and its tokenizer. Every rank calls it: weights may be sharded.

    Args:
        found: see `find_tokenizer`.
        merge: of adapters: merge them into the weights.
    """
    config = getattr(trainer.model, "config", None)
    cache = getattr(config, "use_cache", None)
    if config is not None:
        config.use_cache = True  # off for training only
    try:
        if merge:
            _save_merged(trainer, folder)
        else:
            _save(trainer, folder)
    finally:
        if config is not None:
            config.use_cache = cache
    if trainer.args.should_save:
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle of this machine's paths
        export_tokenizer(found, folder)
    trainer.accelerator.wait_for_everyone()


def _save(trainer: Any, folder: Path) -> None:
    """Whole weights. transformers' own `save_model` writes them in pieces under FSDP, or nothing."""
    if not trainer.is_fsdp_enabled:
        trainer.save_model(str(folder))
        return
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # every rank gives; whole on the first
    if trainer.args.should_save:
        trainer._save(str(folder), state_dict=state)


def _save_merged(trainer: Any, folder: Path) -> None:
    from .adapters import merged

    model = merged(trainer.accelerator.unwrap_model(trainer.model_wrapped))
    if trainer.args.should_save:
        model.save_pretrained(str(folder))


def export_tokenizer(found: Found | None, folder: Path) -> bool:
    """Put tokenizer and chat template beside a model. Returns whether there is one.

    Raises:
        ConfigError: transformers cannot load it.
    """
    if found is None:
        _LOG.warning(
            "the tokenizer that packed the data is not on this machine, so %s holds the model alone; name its folder "
            "with tokenizer:",
            folder,
        )
        return False
    from transformers import AutoTokenizer

    home, template = found
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(home), trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"tokenizer: transformers cannot load {home}: {error}") from error
    if template is not None:
        tokenizer.chat_template = template_text(template, tokenizer.chat_template)
    tokenizer.save_pretrained(str(folder))
    return True


def template_text(template: NotedTemplate, own: Any) -> Any:
    """The text with the noted hash; else the tokenizer's own.

    Args:
        own: the tokenizer's template, or several by their names.
    """
    named = template.named
    texts = [named]
    if isinstance(own, dict) and named in own:
        texts.append(str(own[named]))
    if "{" not in named and Path(named).is_file():
        with suppress(OSError, ValueError), Path(named).open("rb") as file:
            texts.append(file.read(_TEMPLATE_BYTES).decode())
    for text in texts:
        if hash_bytes(text.encode()) == template.hash:
            return text
    _LOG.warning("the chat template %r that packed the data was not found; the tokenizer's own is exported", named)
    return own
