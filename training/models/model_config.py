"""The configuration of a model: where its weights come from, and how they are held."""

from typing import Any, Literal

from pydantic import model_validator

from ...schemas.config.section import ConfigModel


class ModelConfig(ConfigModel):
    """Which model, and in which precision its weights are held."""

    path: str | None = None
    """A folder that `AutoModelForCausalLM.from_pretrained` loads."""
    config: dict[str, Any] | None = None
    """Instead of `path`: the contents of a config.json, with `model_type`. The weights are random."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the weights. `auto`: float32, which keeps an optimizer's small updates; with `trainer.bf16` the
    forward pass still computes in bfloat16. For a quantised model, `auto` is what its configuration says."""
    quantization: dict[str, Any] | None = None
    """transformers' `quantization_config`, such as `{quant_method: bitsandbytes, load_in_4bit: true}`."""

    @model_validator(mode="after")
    def _one_origin(self) -> "ModelConfig":
        if (self.path is None) == (self.config is None):
            raise ValueError("give either path (a folder) or config (what stands in config.json), one of the two")
        if self.config is not None and "model_type" not in self.config:
            raise ValueError("config needs a model_type, such as llama or qwen3")
        if self.quantization is not None and self.config is not None:
            raise ValueError("quantization needs weights to quantise: give path in place of config")
        return self
