"""The embedded engine of `packtrain sample`: the model that a folder holds, and transformers' `generate`, one group of
prompts after another.

Each group starts from a seed of its own, so an answer does not depend on the groups before it, on which machine drew
them, or on an interruption. It does depend on its group: another batch size draws other samples.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...schemas.errors import ConfigError
from ...schemas.files.foreign import SETTINGS_BYTES, read_regular
from ...schemas.fingerprint import hash_bytes
from ...schemas.jsontext import parse_json
from ...schemas.models.samples import SampleAnswer, SampleRequest, SampleSettings
from .adapter import CONFIG, put_adapter, read_adapter
from .model import load_weights, read_config

SEQUENCES = {"cpu": 16, "cuda": 64}
"""Type of device → how many sequences are drawn at once, where no number is given."""
_WEIGHTS = (".safetensors", ".bin")


class GenerateEngine:
    """Answers the requests of a group in one padded batch. A `SampleEngine`.

    Args:
        model: transformers.PreTrainedModel, in evaluation mode.
    """

    def __init__(self, model: Any, settings: SampleSettings) -> None:
        from transformers import GenerationConfig

        self._model = model
        self._stops = set(settings.stop_ids)
        # Any id serves as padding: the mask hides it before a prompt, and answers are cut before it.
        self._padding = settings.stop_ids[0] if settings.stop_ids else 0
        drawing: dict[str, Any] = {"do_sample": False}  # at temperature 0, the likeliest token each time
        if settings.temperature:
            # Without top_k=0, transformers would draw from the 50 likeliest tokens alone.
            drawing = {"do_sample": True, "temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
        self._config = GenerationConfig(
            max_new_tokens=settings.max_new_tokens,
            eos_token_id=list(settings.stop_ids) or None,
            pad_token_id=self._padding,
            **drawing,
        )

    def answers(self, groups: Iterable[Sequence[SampleRequest]]) -> Generator[SampleAnswer, None, None]:
        """The answers to all requests, in their order. A group is drawn when its first answer is asked for.

        Raises:
            ConfigError: memory ran out.
        """
        for group in groups:
            width, sequences = self._generate(group)
            for tokens in sequences[:, width:].tolist():
                # The stop token is part of the answer; what follows it is padding.
                end = next((place + 1 for place, token in enumerate(tokens) if token in self._stops), None)
                yield SampleAnswer(finish_reason="length" if end is None else "stop", token_ids=tuple(tokens[:end]))

    def _generate(self, group: Sequence[SampleRequest]) -> tuple[int, torch.Tensor]:
        """Where all answers begin, which is the length of the longest prompt; and (N, T) prompts with their answers."""
        width = max(len(request.token_ids) for request in group)
        ids = torch.full((len(group), width), self._padding, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(group):
            # Padded on the left, so that all answers begin at one place.
            begin = width - len(request.token_ids)
            ids[row, begin:] = torch.tensor(request.token_ids)
            mask[row, begin:] = 1
        device = self._model.device
        torch.manual_seed(group[0].seed)  # the group's own: all answers of a group are drawn together
        try:
            with torch.inference_mode():
                sequences: torch.Tensor = self._model.generate(
                    inputs=ids.to(device), attention_mask=mask.to(device), generation_config=self._config
                )
                return width, sequences
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"memory ran out with {len(group):,} sequences of up to {width + self._config.max_new_tokens:,} "
                "tokens; lower --batch or --max-new-tokens, then run the same command with another --out"
            ) from error


def load_for_generation(place: "ModelFolder", *, dtype: str, device: torch.device) -> Any:
    """A model (transformers.PreTrainedModel) in evaluation mode, whose own generation settings are forgotten.

    Args:
        place: of the model, and of its adapter, which is merged into it.
        dtype: `float32`, `bfloat16`, `float16`, or `auto` for what the weights have.

    Raises:
        ConfigError: the model or its adapter cannot be loaded, or the device has no room.
    """
    from transformers import GenerationConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    weights_dtype = "auto" if dtype == "auto" else getattr(torch, dtype)
    model = load_weights(place.folder, dtype=weights_dtype)
    if place.adapter is not None:
        model = put_adapter(model, place.adapter).merge_and_unload()
    model.generation_config = GenerationConfig()  # its top_k or penalties would change what is drawn
    try:
        return model.to(device).eval()
    except RuntimeError as error:
        raise ConfigError(
            f"MODEL: it does not go to {device}: {' '.join(str(error).split())[:300]}; free its memory, or set "
            "CUDA_VISIBLE_DEVICES to another device, or to nothing for the CPU"
        ) from error


# What MODEL names


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model that can be loaded; no weights are read yet."""

    folder: Path
    """The whole model, or the model under the adapter."""
    adapter: Path | None
    """The adapter on it; None for a whole model."""
    vocabulary: int
    """Token ids with embeddings, as the configuration says."""
    positions: int | None
    """`max_position_embeddings`; None if the model does not say."""
    stop_ids: tuple[int, ...]
    """The ids of end-of-sequence tokens, first those of generation_config.json, then those of config.json."""

    @property
    def digest(self) -> str:
        """A hash that changes with the model: of the names, sizes and times of its files, but not of where they lie."""
        folders = [self.folder] if self.adapter is None else [self.folder, self.adapter]
        files = [path for folder in folders for path in sorted(folder.glob("*.*")) if path.is_file()]
        lines = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
        return hash_bytes("\n".join(lines).encode())[:16]


def find_model(model: Path, base: Path | None = None) -> ModelFolder:
    """The model in a folder of `save_pretrained`, or under an adapter of peft.

    Args:
        base: the model under an adapter, if not the one that the adapter names.

    Raises:
        ConfigError: there is no model; says what is missing.
    """
    if not model.is_dir():
        raise ConfigError(f"MODEL: there is no folder {model}; give a model's folder, such as the export of a training")
    adapter = None
    if (model / CONFIG).exists():  # adapter_config.json
        adapter = model
        adapted_model = base or Path(str(read_adapter(model).get("base_model_name_or_path") or ""))
        if not (adapted_model / "config.json").is_file():
            raise ConfigError(
                f"MODEL: {model} is an adapter of {str(adapted_model)!r}, where there is no config.json; give the "
                "folder of the model that it adapts with --base"
            )
        model = adapted_model
    elif base is not None:
        raise ConfigError(f"--base is for adapters, and {model} has no adapter_config.json; leave --base out")
    if not (model / "config.json").is_file():
        raise ConfigError(
            f"MODEL: {model} has no config.json; give a folder that holds a whole model, such as a training's OUT/model"
        )
    if not any(path.suffix in _WEIGHTS for path in model.iterdir()):
        raise ConfigError(f"MODEL: {model} has a config.json but no weights; give a folder with *.safetensors")
    text = read_config(model).get_text_config()
    vocabulary = getattr(text, "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise ConfigError(f"MODEL: the configuration of {model} has no vocab_size; give a causal language model")
    generation_path = model / "generation_config.json"
    generation = _json(generation_path) if generation_path.is_file() else {}
    stops: list[int] = []
    for eos in (generation.get("eos_token_id"), getattr(text, "eos_token_id", None)):
        # One token or a list of them; null where a model has none.
        token_ids = eos if isinstance(eos, list) else [eos]
        stops += [token_id for token_id in token_ids if isinstance(token_id, int)]
    positions = getattr(text, "max_position_embeddings", None) or None
    return ModelFolder(model, adapter, vocabulary, positions, tuple(dict.fromkeys(stops)))


def _json(path: Path) -> dict[str, Any]:
    """The settings in a file of JSON. Raises ConfigError if it is no JSON object."""
    try:
        settings = parse_json(read_regular(path, limit=SETTINGS_BYTES))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; copy it again") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} is not a JSON object; copy it again")
    return settings
