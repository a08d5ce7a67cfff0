"""Loads a model for generation: whole, or with an adapter merged into it."""

from importlib.util import find_spec
from pickle import UnpicklingError
from typing import Any

import torch

from ...schemas.errors import ConfigError
from .model_place import ModelPlace


def load_for_generation(place: ModelPlace, *, dtype: str, device: str | None) -> Any:
    """A model (transformers.PreTrainedModel) in evaluation mode, whose own generation settings are forgotten.

    Args:
        dtype: `float32`, `bfloat16`, `float16`, or `auto` for what the weights have.
        device: `cpu`, `cuda`, `cuda:1`; None for CUDA where it is available.

    Raises:
        ConfigError: peft is missing, or transformers cannot load the model.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if place.adapter is not None and find_spec("peft") is None:
        raise ConfigError("MODEL: an adapter needs the package peft: pip install 'packtrain[lora]'")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    kind = "auto" if dtype == "auto" else getattr(torch, dtype)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            str(place.folder),
            dtype=kind,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
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
