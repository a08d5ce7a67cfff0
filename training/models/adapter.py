"""Adapters of peft, read from a folder: LoRA alone, with all its weights, and nothing that it names is opened.

An adapter's configuration can name other repositories (`XLORA`), modules to import and files of statistics, and hold
regular expressions that take longer than the universe. peft gets a configuration that was checked here, and reads only
the weights.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError
from ...schemas.files.foreign import SETTINGS_BYTES, read_regular
from ...schemas.files.model_folder import check_model_folder
from ...schemas.jsontext import parse_json

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""Files of weights. peft takes the first one that is there; without either it would ask a hub."""
PATTERN_SECONDS = 10.0
"""How long all patterns of an adapter may take on the names of a model's modules; honest ones take milliseconds."""
_MOST_RANK = 1 << 14
"""The highest rank of an adapter that is loaded."""
_OUTSIDE = ("corda_config", "eva_config", "lora_ga_config", "megatron_config", "layer_replication")
"""Keys that let peft import modules, open other files, or repeat layers; a finished adapter needs none of them."""
_DRAWN = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that draw the adapter's first weights alone; the adapter's file replaces all of them."""
_TURNED = re.compile(r"pissa(_niter_[1-6]?[0-9])?|olora|loftq")
"""Values of init_lora_weights that also change the model's own weights. The adapter was trained on the changed ones, so
peft must change them again when it loads the adapter."""
_TRY = """
import json, re, sys
patterns, names = json.load(sys.stdin)
for pattern in map(re.compile, patterns):
    for name in names:
        pattern.match(name)
"""
"""The program that tries patterns, in a process of its own."""


def read_adapter(folder: Path) -> dict[str, Any]:
    """The configuration of an adapter.

    Raises:
        ConfigError: it cannot be read, is no LoRA, has no weights, or wants something from outside of its folder.
    """
    where = folder / CONFIG
    try:
        check_model_folder(folder)
        data = parse_json(read_regular(where, limit=SETTINGS_BYTES))
    except (OSError, ValueError) as error:
        name = getattr(error, "filename", None) or where
        raise ConfigError(
            f"{name} cannot be read: {getattr(error, 'strerror', None) or error}; copy the adapter again"
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{where} is not a JSON object; copy it again")
    if not any((folder / name).is_file() for name in WEIGHTS):
        raise ConfigError(f"MODEL: {folder} has an {CONFIG} but no weights; give a folder with {WEIGHTS[0]}")
    if data.get("peft_type") != "LORA":
        raise ConfigError(
            f"{where} is of peft_type {str(data.get('peft_type'))[:40]!r}; packtrain loads LORA alone, because others "
            "may name further repositories"
        )
    for key in _OUTSIDE:
        if data.get(key):
            raise ConfigError(
                f"{where} has the key {key}, which could import modules, open other files or repeat layers; save the "
                "finished adapter without it"
            )
    initialization = data.get("init_lora_weights", True)
    turns_weights = isinstance(initialization, str) and _TURNED.fullmatch(initialization)
    if initialization not in _DRAWN and not turns_weights:
        raise ConfigError(
            f"{where} has init_lora_weights: {str(initialization)[:40]!r}, which needs files that are not in the "
            "folder; save the finished adapter with init_lora_weights: true"
        )
    # A rank is a size of matrices: a huge one would take all memory before weights are compared.
    # 8 is peft's default. By `type`, because True would pass as a whole number.
    ranks = [data.get("r", 8), *_values(data.get("rank_pattern"))]
    if not all(type(rank) is int and 0 < rank <= _MOST_RANK for rank in ranks):
        raise ConfigError(
            f"{where} has a rank (r, rank_pattern) that is not between 1 and {_MOST_RANK:,}; copy it again"
        )
    return data


def put_adapter(model: Any, folder: Path) -> Any:
    """The model with the adapter that a folder holds (peft.PeftModel), all of whose weights must be there.

    Raises:
        ConfigError: peft is missing, or the adapter is damaged, incomplete, or does not fit.
    """
    peft = import_peft()
    data = read_adapter(folder)
    _try_patterns(folder / CONFIG, data, [name for name, _ in model.named_modules()])
    for key in ("runtime_config", "auto_mapping"):  # a class to import, which only peft's own loader asks for
        data.pop(key, None)
    if data.get("init_lora_weights", True) in _DRAWN:
        # The adapter's weights replace what is drawn, so the cheapest way to draw serves: orthogonal weights would be
        # computed for nothing.
        data["init_lora_weights"] = True
    try:
        config = peft.LoraConfig.from_peft_type(**peft.LoraConfig.check_kwargs(**data))
        adapted = peft.PeftModel.from_pretrained(model, str(folder), config=config)
        # Patterns of older names of weights → their names now, as peft looks them up; most models have none.
        mapping = getattr(model, "_checkpoint_conversion_mapping", {})
        # Loaded once more for the report: `from_pretrained` only warns of weights that it does not find.
        weights = peft.load_peft_weights(str(folder), device="cpu", key_mapping=mapping)
        report = peft.set_peft_model_state_dict(adapted, weights)
    except Exception as error:  # of a damaged or hostile folder
        reason = " ".join(str(error).split())[:400] or type(error).__name__
        raise ConfigError(f"MODEL: peft cannot load the adapter {folder}: {reason}") from error
    # The names of an adapter's weights have one of these parts. Other missing weights are the model's own, which an
    # adapter does not hold.
    parts = ("lora_", "modules_to_save", "trainable_tokens")
    missing = sorted(key for key in report.missing_keys if any(part in key for part in parts))
    if missing:
        raise ConfigError(
            f"MODEL: the adapter {folder} lacks {len(missing):,} of its weights, such as {', '.join(missing[:3])}; "
            "copy it again"
        )
    if unused := sorted(report.unexpected_keys):
        raise ConfigError(
            f"MODEL: the adapter {folder} has {len(unused):,} weights for which the model has no place, such as "
            f"{', '.join(unused[:3])}; give the model that it was trained on with --base"
        )
    return adapted


def import_peft() -> Any:
    """The package peft. Raises ConfigError if it is missing."""
    try:
        import peft
    except ImportError as error:
        raise ConfigError(f"lora: adapters need peft ({error}); pip install 'packtrain[lora]'") from None
    return peft


def _try_patterns(where: Path, data: dict[str, Any], names: list[str]) -> None:
    """Try an adapter's regular expressions on the names of a model's modules, as peft would, in a process that can be
    ended.

    Raises:
        ConfigError: they take too long, or one of them is no regular expression.
    """
    patterns = list(_patterns(data))
    if not patterns:
        return
    try:
        # In a process of its own: a regular expression cannot be interrupted, and may run for years. -I and -S leave
        # out Python's environment variables and installed packages, which `_TRY` does not need.
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRY],
            input=json.dumps([patterns, names]).encode(),
            capture_output=True,
            check=False,
            timeout=PATTERN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{where}: its patterns (target_modules, exclude_modules, layers_pattern, rank_pattern) take more than "
            f"{PATTERN_SECONDS:.0f} seconds on the names of the model's modules; list the modules' names instead"
        ) from None
    if done.returncode:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise ConfigError(f"{where}: one of its patterns cannot be used ({last_line}); list the modules' names instead")


def _patterns(data: dict[str, Any]) -> Iterator[str]:
    """The regular expressions that peft makes of a configuration, written as peft writes them."""
    for key in ("target_modules", "exclude_modules"):
        if isinstance(data.get(key), str):
            yield rf"(?:{data[key]})\Z"
    for module in _values(data.get("modules_to_save")):
        yield rf"(^|.*\.){module}($|\..*)"
    for pattern in _values(data.get("layers_pattern")):
        yield rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\."
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern in data.get(key) or {}:
            yield rf"(.*\.)?({pattern})$"


def _values(value: Any) -> list[Any]:
    """The entries of a list, or the values of an object; a single value as the only entry; no entries for None."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list):
        return value
    return [] if value is None else [value]
