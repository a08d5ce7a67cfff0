"""What MODEL names: a folder of `save_pretrained`, an adapter of peft, or a training checkpoint. Loads no weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schemas.errors import ConfigError
from ..schemas.fingerprint import hash_bytes
from ..schemas.jsontext import parse_json
from .attention.apply import refuse_foreign_attention
from .sharded import find_shards

_EDGE = 1 << 20
_WEIGHTS = (".safetensors", ".bin")
_ADAPTER = ("adapter_model",)
"""How names of an adapter's weights begin; where peft finds none, it looks in a hub."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model that can be loaded."""

    folder: Path
    """The whole model, or the model under the adapter."""
    adapter: Path | None
    vocabulary: int
    """Token ids with embeddings, as the configuration says."""
    positions: int | None
    """`max_position_embeddings`; None if the model does not say."""
    stop_ids: tuple[int, ...]
    """End-of-sequence tokens of generation_config.json and config.json."""

    @property
    def digest(self) -> str:
        """Says that the weights are others: a hash of configurations, and of the ends of each file of weights."""
        return hash_bytes(b"".join(_edges(one) for one in (self.folder, self.adapter) if one is not None))[:16]


def is_sharded(model: Path) -> bool:
    """Whether a folder is a sharded checkpoint, which must be gathered before it can be loaded."""
    return find_shards(model) is not None


def find_model(model: Path, base: Path | None = None) -> ModelFolder:
    """The model in a folder.

    Args:
        base: the model under an adapter, if not the one that the adapter names.

    Raises:
        ConfigError: there is no model; says what is missing.
    """
    if not model.is_dir():
        raise ConfigError(f"MODEL: there is no folder {model}; give a model's folder, such as the export of a training")
    adapter = None
    if (model / "adapter_config.json").is_file():
        adapter = model
        named = base or Path(str(_json(model / "adapter_config.json").get("base_model_name_or_path") or ""))
        if not (named / "config.json").is_file():
            raise ConfigError(
                f"MODEL: {model} is an adapter of {str(named)!r}, where there is no config.json; give the folder of "
                "the model that it adapts with --base"
            )
        model = named
    elif base is not None:
        raise ConfigError(f"--base is for adapters, and {model} has no adapter_config.json; leave --base out")
    if not (model / "config.json").is_file():
        inside = model / "model"  # of a training's folder
        raise ConfigError(
            f"MODEL: {model} has no config.json; give "
            f"{inside if (inside / 'config.json').is_file() else 'a folder that holds a whole model'}"
        )
    _check_weights(model, ("",))
    if adapter is not None:
        _check_weights(adapter, _ADAPTER)
    config = read_model(model)
    text = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise ConfigError(f"MODEL: the configuration of {model} has no vocab_size; give a causal language model")
    positions = getattr(text, "max_position_embeddings", None)
    noted = _json(model / "generation_config.json") if (model / "generation_config.json").is_file() else {}
    ends = [noted.get("eos_token_id"), getattr(text, "eos_token_id", None)]
    stops = [id for end in ends for id in (end if isinstance(end, list) else [end]) if isinstance(id, int)]
    return ModelFolder(model, adapter, vocabulary, positions or None, tuple(dict.fromkeys(stops)))


def read_model(model: Path) -> Any:
    """A model's configuration (transformers.PretrainedConfig), which cannot name code.

    Raises:
        ConfigError: it cannot be read, or wants code that is not installed.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(model), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # architectures raise all kinds of errors if they cannot build a configuration
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"the configuration of {model} cannot be read: {said}") from error
    refuse_foreign_attention(config, model / "config.json")
    return config


def _check_weights(folder: Path, names: tuple[str, ...]) -> None:
    """Refuse a folder without weights, or whose index of weights leads out of it.

    Raises:
        ConfigError: as said.
    """
    for path in folder.glob("*.index.json"):
        files = _json(path).get("weight_map")
        for name in files.values() if isinstance(files, dict) else ():
            if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name:
                raise ConfigError(f"MODEL: {path} names weights outside of its folder: {name!r}; copy the model again")
    if not any(one.suffix in _WEIGHTS and one.name.startswith(names) for one in folder.iterdir()):
        what = "an adapter_config.json" if names == _ADAPTER else "a config.json"
        raise ConfigError(f"MODEL: {folder} has {what} but no weights; give a folder with *.safetensors")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; copy it again") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not a JSON object; copy it again")
    return found


def _edges(folder: Path) -> bytes:
    parts = []
    for path in sorted(folder.iterdir()):
        if path.name in ("config.json", "adapter_config.json"):
            parts.append(path.read_bytes())
        elif path.suffix in _WEIGHTS and path.is_file():
            with path.open("rb") as file:
                size = path.stat().st_size
                parts.append(f"{path.name} {size}".encode() + file.read(_EDGE))
                file.seek(max(0, size - _EDGE))
                parts.append(file.read(_EDGE))
    return b"\0".join(parts)
