"""The configuration of a training, validated by pydantic. Every field says what it does.

What is about data, isolation and the loss stands here; everything else of transformers.TrainingArguments stands
under `trainer:` as it is. Keys of TrainingArguments that packtrain decides by itself are refused there, each with the
reason and the key to use (`owned.OWNED`).
"""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ...schemas.section import Section, Size
from ..mixture import Source
from ..options import nearest
from .owned import check_owned


class ModelConfig(Section):
    """Which model, and in which precision its weights are held."""

    path: str | None = None
    """A folder that `AutoModelForCausalLM.from_pretrained` loads; with `random`, one that holds config.json."""
    config: dict[str, Any] | None = None
    """In place of `path`: what would stand in config.json, `model_type` among it. The weights are drawn."""
    random: bool = False
    """Draw the weights in place of loading them: for trials, and to train from nothing."""
    overrides: dict[str, Any] = Field(default={})
    """Keys of the model's configuration to change before it is built, such as `{num_hidden_layers: 4}`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the weights. `auto`: float32, in which an optimizer's small updates are not lost; with `trainer.bf16` the
    forward pass still computes in bfloat16. Of a quantised model: what its configuration says."""
    quantization: dict[str, Any] | None = None
    """What transformers takes as `quantization_config`, such as `{quant_method: bitsandbytes, load_in_4bit: true}`."""
    trust_remote_code: bool = False
    """Run the Python that lies in the model's folder."""

    @model_validator(mode="after")
    def _one_origin(self) -> "ModelConfig":
        if (self.path is None) == (self.config is None):
            raise ValueError("give either path (a folder) or config (what stands in config.json), one of the two")
        if self.config is not None and "model_type" not in self.config:
            raise ValueError("config needs a model_type, such as llama or qwen3")
        if self.quantization is not None and (self.random or self.config is not None):
            raise ValueError("quantization needs weights to quantise: leave random and config out")
        return self


class DataConfig(Section):
    """One packed dataset of a mixture; see docs/loader.md."""

    path: str
    """Folder or URL that `packtrain run` wrote."""
    weight: float | None = Field(default=None, gt=0)
    """Its share of the mixture; only the proportions count."""
    epochs: int | None = Field(default=None, ge=1)
    """How often it is read; null for `epochs` of the whole."""
    split: str = "train"
    """`train` or `holdout`."""


class BalanceConfig(Section):
    """Rows of like cost laid near each other; see docs/loader.md."""

    block: int = Field(ge=1)
    """Rows among which they are laid near each other."""
    group: int = Field(ge=1)
    """Rows of one group."""


class LoaderConfig(Section):
    """Options of the loader that a training rarely needs; docs/loader.md explains them."""

    order: Literal["full", "blocks", "sequential"] = "full"
    """For remote shards that the cache cannot hold, `blocks`."""
    first_epoch_sequential: bool | None = None
    """Read epoch 0 as the rows lie; null where packing has shuffled them."""
    balance: Literal["auto"] | BalanceConfig | None = "auto"
    """Rows of like cost near each other, and each step's rows dealt to the ranks by cost."""
    tail: Literal["drop", "pad", "repeat"] = "drop"
    """What happens to the rows after the last full step."""
    mix_by: Literal["tokens", "rows"] = "tokens"
    """What the weights of a mixture are shares of."""
    until: Literal["first", "all"] = "first"
    """Where a mixture with weights ends."""
    num_workers: int = Field(default=1, ge=0)
    """Threads that make batches ahead."""
    prefetch: int = Field(default=2, ge=1)
    """Batches ahead, for each worker, at least."""
    static_shapes: bool | int = False
    """Every batch of the same shape, for CUDA graphs."""
    seq_idx: bool = False
    """Also hand out the number of each token's document, for convolution and state-space layers."""
    cache: str | None = None
    """Folder for remote shards."""
    cache_bytes: Size | None = None
    """That the cache may hold."""
    storage_options: dict[str, Any] | None = None
    """For fsspec: credentials, endpoints and the like."""
    verify: Literal["never", "first"] = "never"
    """`first`: compare each local shard with its hash when it is first opened. Downloads always are."""


class EvalConfig(Section):
    """A held-out packed set, on which the loss is measured."""

    data: str | None = None
    """Folder or URL; null for the training data, where that is one dataset."""
    split: str = "holdout"
    """Which split of it."""
    every: int | None = Field(default=None, ge=1)
    """Steps between two measurements; null for one, at the end."""
    rows: int | None = Field(default=None, ge=1)
    """Only so many packed rows, the first ones; null for all."""
    rows_per_device: int | None = Field(default=None, ge=1)
    """Rows of one forward pass on one device; null for the training's."""


class ExportConfig(Section):
    """The finished model, in a folder that transformers loads."""

    path: str | None = None
    """Which folder; null for `model` in `out`."""
    merge: bool = False
    """Of adapters: write the model with the adapters merged into its weights, in place of the adapters alone."""


class TrainConfig(Section):
    """A training. Relative paths start at the configuration's folder."""

    out: str
    """The folder for checkpoints, logs and the finished model."""
    model: ModelConfig
    """Which model; a path alone stands for `{path: …}`."""
    data: tuple[DataConfig, ...] = Field(min_length=1)
    """The packed dataset, or several as a mixture; a path alone stands for `{path: …}`."""
    rows_per_step: int = Field(ge=1)
    """Packed rows of one optimizer step, over all ranks and accumulation steps: the same rows whatever their number."""
    rows_per_device: int = Field(default=1, ge=1)
    """Rows of one forward pass on one device. Accumulation follows: rows_per_step / (ranks · rows_per_device)."""
    epochs: int = Field(default=1, ge=1)
    """How often the data is read. `trainer.max_steps` ends a training earlier."""
    seed: int = Field(default=0, ge=0)
    """Of the order of rows, of drawn weights and of dropout."""
    loader: LoaderConfig = LoaderConfig()
    """Rarely needed options of the loader."""
    batching: Literal["packed", "padding_free", "padded"] = "packed"
    """What a batch is. `padded` (every document a row, padded) and `padding_free` (documents one after another, not
    packed) are baselines: they show what packing buys on your own data."""
    attention: Literal["auto", "packed_varlen", "packed_block_mask", "sdpa", "eager"] = "auto"
    """How documents are kept apart; docs/isolation.md. `auto` takes the fastest that the model allows."""
    probe: bool = True
    """Prove before the first step, and after resuming, that no document sees another. Only for batches without
    documents to keep apart is there a reason to switch it off."""
    loss: Literal["token", "document"] = "token"
    """What the loss is a mean of: every trained token of a step alike, or every document (piece) alike."""
    loss_kernel: Literal["auto", "none", "chunked", "liger", "torch"] = "auto"
    """How the cross-entropy is computed; all agree. `none` holds the logits of all trained tokens at once."""
    compile: bool | dict[str, Any] = False
    """torch.compile; a mapping for its `backend` and `mode`."""
    offload_activations: bool = False
    """Keep activations in the host's memory between forward and backward."""
    lora: dict[str, Any] | None = None
    """Train low-rank adapters in place of the weights; needs peft."""
    eval: EvalConfig | None = None
    """Measure the loss on held-out data."""
    tokenizer: str | None = None
    """Folder of the tokenizer that goes beside the finished model; null for the one that packed the data, where this
    machine still has it."""
    export: ExportConfig | None = ExportConfig()
    """The finished model; `false` for none."""
    resume: str = "auto"
    """`auto` goes on from the last whole checkpoint in `out`, where there is one; `never` refuses to; or a
    checkpoint's folder."""
    trainer: dict[str, Any] = Field(default={})
    """transformers.TrainingArguments: `learning_rate`, `lr_scheduler_type`, `bf16`, `save_steps` and all the others."""

    @field_validator("model", mode="before")
    @classmethod
    def _model_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("data", mode="before")
    @classmethod
    def _data_paths(cls, value: Any) -> Any:
        several = value if isinstance(value, list | tuple) else [value]
        return [{"path": one} if isinstance(one, str) else one for one in several]

    @field_validator("export", mode="before")
    @classmethod
    def _export_path(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return ExportConfig() if value else None
        return {"path": value} if isinstance(value, str) else value

    @field_validator("trainer")
    @classmethod
    def _owned(cls, value: dict[str, Any]) -> dict[str, Any]:
        check_owned(value)
        return value

    @model_validator(mode="after")
    def _fits(self) -> "TrainConfig":
        if self.rows_per_step % self.rows_per_device:
            raise ValueError(
                f"rows_per_step ({self.rows_per_step}) must be a multiple of rows_per_device ({self.rows_per_device}); "
                f"take {nearest(self.rows_per_step, self.rows_per_device)}"
            )
        if self.eval is not None and self.eval.data is None and len(self.data) > 1:
            raise ValueError("eval.data is needed where the training data is a mixture: the held-out set's folder")
        if self.batching == "padded" and self.attention not in ("auto", "sdpa", "eager"):
            raise ValueError(
                f"batching: padded keeps documents in rows of their own, for which attention: {self.attention} is not "
                "made; take attention: auto"
            )
        return self

    def sources(self) -> list[Source]:
        """The data as the loader takes it."""
        return [Source(one.path, one.weight, one.epochs, one.split) for one in self.data]
