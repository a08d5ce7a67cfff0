"""The configuration that reproduces a dataset."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ...schemas.config.config import RunConfig
from ...schemas.config.source import PYTHON
from ..dataset.run_notes import recall, without_secrets
from ..store.open import Store, is_url


def configuration_noted(out: Store, config: Mapping[str, Any]) -> str:
    """YAML that reproduces a finished dataset, from its notes or else from its plan.

    Args:
        config: the plan's.
    """
    origin = recall(out)
    return configuration_of(origin.config, origin.base) if origin is not None else _identity(config)


def configuration_of(config: RunConfig, base: Path) -> str:
    """YAML that reproduces the dataset from any folder of this machine: full paths, no secrets, no defaults."""
    data = config.model_dump(mode="json", exclude={"run"}, exclude_defaults=True)
    for key in ("out", "cache"):
        if data.get(key) is not None:
            data[key] = _full(data[key], base)
    tokenizer = data["tokenizer"]
    tokenizer["path"] = _full(tokenizer["path"], base)
    template = tokenizer.get("chat_template")
    if template is not None and "{" not in template and (base / template).is_file():
        tokenizer["chat_template"] = _full(template, base)
    for source in data["sources"]:
        paths = [_full(path, base) for path in source["path"]]
        source["path"] = paths[0] if len(paths) == 1 else paths
    if config.decontaminate is not None:
        data["decontaminate"]["against"] = [_full(path, base) for path in config.decontaminate.against]
    own = any(source.format.startswith(PYTHON) for source in config.sources)
    head = f"# Save this file in {base}, so that your own reader functions are found.\n" if own else ""
    return head + _yaml(data)


def _full(path: str, base: Path) -> str:
    if is_url(path):
        return without_secrets(path)
    if path.startswith("hf://./"):
        return f"hf://{base / path.removeprefix('hf://./')}"
    return path if path.startswith("hf://") else str(base / path)


def _identity(config: Mapping[str, Any]) -> str:
    """YAML with `?` for the paths, which are unknown without the run's notes."""
    data = {"out": "?", **config, "tokenizer": {"path": "?", **config["tokenizer"]}}
    data["sources"] = [{"path": "?", **source} for source in config["sources"]]
    return "# The paths are no longer known; replace every ?.\n" + _yaml(data)


def _yaml(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
