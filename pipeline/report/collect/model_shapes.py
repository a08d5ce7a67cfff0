"""The model whose work the report estimates: from numbers, or from a model's folder. Needs no torch.

Parameters are those active for a token: in a mixture of experts, only the chosen experts count. They are counted in the
headers of safetensors files if there are any, else computed from `config.json`.
"""

import math
import re
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ....schemas.errors import ConfigError, TokenizerError
from ....schemas.jsontext import parse_json
from ....schemas.positions import Limit, stretching
from ....schemas.report import ReportShape
from ....schemas.units import large
from ...encode.tokenizer_folder import find_tokenizer, tokenizer_name
from ..options import SEVEN_BILLION, ReportOptions

_HEADER = 100 << 20
"""Maximum number of bytes of a safetensors header."""
_EXPERT = re.compile(r"\.experts\.")
_SHOWN = "--model"
_MOST = 10_000_000
"""Largest number accepted in a model's configuration. It is limited because layers are counted one by one."""
_LARGEST = 1e18
"""Limit of numbers from the user, so that products stay finite."""


def shape_of_numbers(parameters: float, layers: int, hidden: int) -> ReportShape:
    """The shape that the user gives by numbers.

    Raises:
        ConfigError: a number is out of range.
    """
    for name, value in (("--parameters", parameters), ("--layers", layers), ("--hidden", hidden)):
        if not (0 < value < math.inf):
            raise ConfigError(f"{name} {value}: give a number above 0, such as --parameters 7e9")
        if value > _LARGEST:
            raise ConfigError(f"{name}: give a number of at most {_LARGEST:g}, such as --parameters 7e9")
    return ReportShape(f"{large(parameters)} parameters", float(parameters), int(layers), int(hidden))


def shape_of_model(path: Path) -> ReportShape:
    """The shape of a model, from its folder or its `config.json`.

    Raises:
        ConfigError: the file is missing, or lacks a number.
    """
    folder = path if path.is_dir() else path.parent
    config = _config(path / "config.json" if path.is_dir() else path)
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    hidden = _number(inner, path, "hidden_size", "n_embd", "d_model")
    layers = _number(inner, path, "num_hidden_layers", "n_layer", "num_layers")
    counted = _in_files(folder, inner) if path.is_dir() else None
    try:
        parameters = counted if counted is not None else _counted(inner, path, hidden, layers)
    except ConfigError:
        raise
    except (ArithmeticError, TypeError, ValueError):
        raise ConfigError(
            f"{_SHOWN}: the parameters cannot be counted from {path}; give --parameters, --layers and --hidden"
        ) from None
    name = folder.absolute().name if path.name == "config.json" or path.is_dir() else path.stem
    shown = f"{name}, {large(parameters)} parameters"
    return ReportShape(shown, float(parameters), layers, hidden, _limit(inner))


def with_tokenizers_model(options: ReportOptions, tokenizer: str, base: Path) -> ReportOptions:
    """The options, with the model in the tokenizer's folder if the user gave none.

    Without a model there that `shape_of_model` can read, the options stay as they are.

    Args:
        tokenizer, base: as for `find_tokenizer`.
    """
    if options.shape != SEVEN_BILLION:
        return options
    try:
        folder = find_tokenizer(tokenizer, base)
        if not (folder / "config.json").is_file():
            return options
        shape = shape_of_model(folder)
    except (ConfigError, TokenizerError, OSError):
        return options
    name = f"the model in {tokenizer_name(folder)}/config.json, {large(shape.parameters)} parameters"
    return replace(options, shape=replace(shape, name=name))


def _limit(config: dict[str, Any]) -> Limit | None:
    """The longest document that the model is made for; None if the configuration does not say."""
    positions = _either(config, "max_position_embeddings", "n_positions")
    limits = [Limit(positions, f"the model's positions end at {positions:,}")] if positions > 1 else []
    try:
        stretch = [Limit(one.tokens, f"the model's {one.reason}") for one in stretching(SimpleNamespace(**config))]
    except (AttributeError, TypeError, ValueError, OverflowError):
        stretch = []
    limits += [one for one in stretch if 1 < one.tokens <= _MOST]
    return min(limits, key=lambda one: one.tokens, default=None)


def _config(path: Path) -> dict[str, Any]:
    try:
        config = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{_SHOWN}: there is no {path}; give a model's folder or its config.json, or --parameters, --layers and "
            "--hidden"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{_SHOWN}: {path} cannot be read ({error}); give --parameters, --layers and --hidden"
        ) from None
    if not isinstance(config, dict):
        raise ConfigError(f"{_SHOWN}: {path} is not a model's config.json; give --parameters, --layers and --hidden")
    return config


def _number(config: dict[str, Any], path: Path, *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST:
            return value
    if default is not None:
        return default
    raise ConfigError(f"{_SHOWN}: {path} does not say its {names[0]}; give --parameters, --layers and --hidden instead")


def _experts(config: dict[str, Any]) -> tuple[int, int]:
    """(experts per layer, experts active per token); (0, 0) for a dense model."""
    every = _either(config, "num_local_experts", "num_experts", "n_routed_experts")
    chosen = _either(config, "num_experts_per_tok", "top_k_experts")
    return every, min(chosen or every, every)


def _either(config: dict[str, Any], *names: str) -> int:
    """The first of the named numbers that is there; 0 if none is."""
    found = (config.get(name) for name in names)
    return next((one for one in found if type(one) is int and 0 < one <= _MOST), 0)


def _in_files(folder: Path, config: dict[str, Any]) -> float | None:
    """Parameters counted in the headers of safetensors files; None if there are none, or they cannot be read."""
    every, chosen = _experts(config)
    seen: dict[str, float] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > _HEADER:
                    return None
                header = parse_json(file.read(length))
            for name, tensor in header.items():
                if name != "__metadata__":
                    if "U8" in tensor["dtype"] or tensor["dtype"] == "I32":
                        return None  # quantized: several weights in one number
                    size = float(math.prod(tensor["shape"]))
                    if not 0 <= size <= _LARGEST:
                        return None
                    seen[name] = size * chosen / every if every and _EXPERT.search(name) else size
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, struct.error):
            return None
    return sum(seen.values()) or None


def _counted(config: dict[str, Any], path: Path, hidden: int, layers: int) -> float:
    """Parameters computed from a decoder's shapes: attention, gated feed-forward or experts, norms, embeddings."""
    heads = _number(config, path, "num_attention_heads", "n_head", "num_heads")
    vocabulary = _number(config, path, "vocab_size")
    if "n_embd" in config:  # like GPT-2: biases everywhere, learned positions, no gate
        wide = _number(config, path, "n_inner", default=4 * hidden)
        positions = _number(config, path, "n_positions", "n_ctx", default=1024)
        layer = 4 * hidden * hidden + 4 * hidden + 2 * hidden * wide + wide + hidden + 4 * hidden
        return float(layers * layer + 2 * hidden + (vocabulary + positions) * hidden)
    kind = str(config.get("model_type", ""))
    head = _number(config, path, "head_dim", default=hidden // heads)
    groups = _number(config, path, "num_key_value_heads", default=heads)
    attention = 2 * hidden * heads * head + 2 * hidden * groups * head
    if kind.startswith("qwen2"):  # queries, keys and values have biases that the configuration does not mention
        attention += heads * head + 2 * groups * head
    elif config.get("attention_bias"):
        attention += heads * head + 2 * groups * head + hidden
    if kind.startswith(("qwen3", "gemma3")):  # norms of queries and keys
        attention += 2 * head
    norms = (4 if kind.startswith(("gemma2", "gemma3")) else 2) * hidden
    wide = _number(config, path, "intermediate_size", "moe_intermediate_size")
    dense = 3 * hidden * wide
    every, chosen = _experts(config)
    total = layers * (attention + norms)
    if every:
        of_expert = 3 * hidden * _number(config, path, "moe_intermediate_size", default=wide)
        sparse = hidden * every + chosen * of_expert
        shared = config.get("shared_expert_intermediate_size")
        if isinstance(shared, int) and shared > 0:
            sparse += 3 * hidden * shared + hidden
        shared_experts = config.get("n_shared_experts")
        if isinstance(shared_experts, int) and shared_experts > 0:
            sparse += shared_experts * of_expert
        step = _number(config, path, "decoder_sparse_step", default=1)
        alone = set(config.get("mlp_only_layers") or ())
        first = config.get("first_k_dense_replace") or 0
        for layer_number in range(layers):
            is_dense = layer_number in alone or (layer_number + 1) % step or layer_number < first
            total += dense if is_dense else sparse
    else:
        total += layers * dense
    tied = config.get("tie_word_embeddings", kind.startswith(("gemma",)))
    return float(total + hidden + vocabulary * hidden * (1 if tied else 2))
