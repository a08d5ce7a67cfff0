"""The embedded engine of `packtrain sample`: transformers' `generate`, one group of prompts after another.

Each group starts from a seed of its own, so an answer does not depend on the groups before it, on which machine drew
them, or on an interruption. It does depend on its group: another batch size draws other samples.
"""

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pickle import UnpicklingError
from typing import Any

import torch

from ..schemas.errors import ConfigError
from ..schemas.samples import SampleAnswer, SampleRequest, SampleSettings
from .model_folder import ModelFolder

SEQUENCES = {"cpu": 16, "cuda": 64}
"""Sequences at once, where no number is given, by type of device."""


class GenerateEngine:
    """Answers the requests of a group in one padded batch. A `SampleEngine`.

    Args:
        model: transformers.PreTrainedModel, in evaluation mode.
    """

    def __init__(self, model: Any, settings: SampleSettings) -> None:
        from transformers import GenerationConfig

        self._model = model
        self._stops = set(settings.stop_ids)
        self._padding = settings.stop_ids[0] if settings.stop_ids else 0
        drawn = {"do_sample": True, "temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
        self._config = GenerationConfig(
            max_new_tokens=settings.max_new_tokens,
            eos_token_id=list(settings.stop_ids) or None,
            pad_token_id=self._padding,
            **(drawn if settings.temperature else {"do_sample": False}),
        )

    def answers(self, groups: Iterable[Sequence[SampleRequest]]) -> Iterator[SampleAnswer]:
        """See `SampleEngine`.

        Raises:
            ConfigError: memory ran out.
        """
        for group in groups:
            yield from self._batch(group)

    def close(self) -> None:
        """See `SampleEngine`."""
        self._model = None

    def _batch(self, group: Sequence[SampleRequest]) -> list[SampleAnswer]:
        width = max(len(one.ids) for one in group)
        ids = torch.full((len(group), width), self._padding, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, one in enumerate(group):  # padded on the left, so that all answers begin at one place
            ids[row, width - len(one.ids) :] = torch.tensor(one.ids)
            mask[row, width - len(one.ids) :] = 1
        device = self._model.device
        torch.manual_seed(group[0].seed)
        try:
            with torch.inference_mode():
                made = self._model.generate(
                    ids.to(device), attention_mask=mask.to(device), generation_config=self._config
                )
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"memory ran out with {len(group):,} sequences of up to {width + self._config.max_new_tokens:,} "
                "tokens; lower --batch or --max-new-tokens, then run the same command with another --out"
            ) from error
        return [self._answer(one, tokens) for one, tokens in zip(group, made[:, width:].tolist(), strict=True)]

    def _answer(self, request: SampleRequest, tokens: list[int]) -> SampleAnswer:
        end = next((at for at, token in enumerate(tokens) if token in self._stops), None)
        if end is None:
            return SampleAnswer(request.key, "length", tuple(tokens))
        return SampleAnswer(request.key, "stop", tuple(tokens[: end + 1]))


def load_for_generation(place: ModelFolder, *, dtype: str, device: torch.device) -> Any:
    """A model (transformers.PreTrainedModel) in evaluation mode, whose own generation settings are forgotten.

    Args:
        dtype: `float32`, `bfloat16`, `float16`, or `auto` for what the weights have.

    Raises:
        ConfigError: peft is missing, or transformers cannot load the model.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    if place.adapter is not None and find_spec("peft") is None:
        raise ConfigError("MODEL: an adapter needs the package peft: pip install 'packtrain[lora]'")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    kind = "auto" if dtype == "auto" else getattr(torch, dtype)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            str(place.folder), dtype=kind, trust_remote_code=False, local_files_only=True, output_loading_info=True
        )
        if place.adapter is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, str(place.adapter)).merge_and_unload()
    except UnpicklingError as error:  # torch reads tensors alone, and advises otherwise
        raise ConfigError(
            f"MODEL: {place.adapter or place.folder} holds a pickle with more than weights, which is not loaded; take "
            "weights in *.safetensors"
        ) from error
    except Exception as error:  # of a hostile or damaged folder: pickle's, peft's and any of the architecture
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"MODEL: transformers cannot load {place.adapter or place.folder}: {said}") from error
    if missing := sorted(report["missing_keys"]):  # transformers draws them at random
        raise ConfigError(
            f"MODEL: {place.folder} lacks {len(missing):,} of the model's weights, such as {', '.join(missing[:3])}; "
            "give the complete folder"
        )
    model.generation_config = GenerationConfig()  # its top_k or penalties would change what is drawn
    try:
        return model.to(device).eval()
    except RuntimeError as error:
        raise ConfigError(f"--device {device}: {' '.join(str(error).split())[:300]}") from error
