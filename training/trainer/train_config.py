"""The configuration of a training, validated by pydantic. Every field says what it does.

Keys about data, isolation and the loss are here; `trainer:` takes all other keys of transformers.TrainingArguments
unchanged. Keys that packtrain decides itself are refused there, each with the key to use or the reason (`OWNED`).
"""

from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from ...schemas.config.section import ConfigModel, Size
from ...schemas.errors import ConfigError, did_you_mean
from ..models.model_config import ModelConfig
from ..order import OrderName
from ..preference.kinds import LOSSES, refuse_loss
from ..rank_info import divisible, nearest

CUT = (
    "context and sequence parallelism cut rows across ranks and drop the bounds between documents; tensor parallelism "
    "needs the same rows on several ranks. To save memory use FSDP, gradient checkpointing or a smaller "
    "truncate.max_length"
)
OWNED = {
    "output_dir": "use out",
    **dict.fromkeys(("per_device_train_batch_size", "auto_find_batch_size"), "use rows_per_device"),
    "gradient_accumulation_steps": "it follows from rows_per_step / (ranks · rows_per_device)",
    "num_train_epochs": "use epochs",
    **dict.fromkeys(("seed", "data_seed"), "use seed"),
    "resume_from_checkpoint": "the last whole checkpoint in out is resumed; delete later ones to take an earlier one",
    **dict.fromkeys(("use_liger_kernel", "liger_kernel_config"), "use loss_kernel: liger"),
    **dict.fromkeys(("eval_strategy", "eval_steps", "eval_on_start", "per_device_eval_batch_size"), "use eval"),
    **dict.fromkeys(
        (
            "dataloader_num_workers", "dataloader_drop_last", "train_sampling_strategy", "accelerator_config",
            "remove_unused_columns", "ignore_data_skip",
        ),
        "packtrain's own loader makes the batches: use loader",
    ),
    "label_smoothing_factor": "the loss is the plain cross-entropy",
    "neftune_noise_alpha": "its noise is scaled by the length of a row, which holds many documents",
    "save_only_model": "a training cannot go on without its optimizer's state; save_total_limit keeps fewer",
    "use_cache": "a cache's mask lets the documents of a row see each other",
    "parallelism_config": CUT,
}  # fmt: skip
"""Keys of transformers.TrainingArguments that packtrain decides → why, or the key to use."""
_DEFAULTS = {
    "report_to": ["tensorboard"] if find_spec("tensorboard") else [],
    "logging_steps": 10,
    "logging_first_step": True,
    "logging_nan_inf_filter": False,  # a NaN should be seen; looking for it costs a synchronisation a batch
}
"""packtrain's defaults for keys that a configuration leaves out."""
_PLAIN = (bool, int, float, bool | None, int | None, float | None)
"""Types of keys whose values transformers does not check."""


class LoaderConfig(ConfigModel):
    """Options of the loader that a training rarely needs; docs/loader.md explains them."""

    order: OrderName = "full"
    """In which order rows are read. For remote shards that the cache cannot hold, `sequential`."""
    balance: int = Field(default=1, ge=1)
    """Rows of similar cost are placed together, in groups of so many. With one row a rank, give the number of ranks."""
    tail: Literal["drop", "pad"] = "drop"
    """What happens to the rows after the last full step."""
    static_shapes: bool = False
    """Every batch of the same shape, for CUDA graphs."""
    seq_idx: bool = False
    """Add the number of each token's document to a batch, for convolution and state-space layers."""
    cache: str | None = None
    """Folder for remote shards."""
    cache_bytes: Size | None = None
    """Bytes that the cache may hold."""
    storage_options: dict[str, Any] | None = None
    """Options of the store: credentials, endpoints and the like."""


class EvalConfig(ConfigModel):
    """Held-out packed rows, on which the loss is measured."""

    data: str | None = None
    """Folder or URL; null for the training data."""
    split: str = "holdout"
    """Which split."""
    every: int | None = Field(default=None, ge=1)
    """Steps between two measurements; null for one, at the end."""
    rows: int | None = Field(default=None, ge=1)
    """Only the first packed rows, this many; null for all."""


class PreferenceConfig(ConfigModel):
    """The loss of preference pairs."""

    loss: Literal["dpo", "ipo", "simpo", "orpo", "reward"] = "dpo"
    """`dpo`, `ipo` compare with a reference, `simpo`, `orpo` do not; `reward` trains a model that scores answers."""
    beta: float = Field(default=0.1, gt=0)
    """How much the comparison of the two answers weighs; `reward` has none."""
    gamma: float = Field(default=0.5, ge=0)
    """Of `simpo`: the margin by which the chosen answer should be ahead."""
    reference: str | None = None
    """The file of the reference's log-probabilities; null for `reference.arrow` in `out`. Without it, they are computed
    before the first step, with the model that training starts from."""

    @field_validator("loss", mode="before")
    @classmethod
    def _trainable(cls, value: Any) -> Any:
        """Refuse a loss that cannot be trained, with the reason where it is a loss that people know from elsewhere."""
        refusal = refuse_loss(str(value))
        if refusal is not None:
            raise ValueError(refusal)
        return value

    @property
    def identity(self) -> str:
        """The loss and those of its numbers that it uses, as text: another text is another training."""
        gamma = f", gamma: {self.gamma:g}" if self.loss == "simpo" else ""
        beta = "" if self.scores else f", beta: {self.beta:g}"
        return f"{{loss: {self.loss}{beta}{gamma}}}"

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities are compared with those of a reference."""
        return LOSSES[self.loss].needs_reference

    @property
    def scores(self) -> bool:
        """Whether a reward model is trained."""
        return LOSSES[self.loss].scores


class TrainConfig(ConfigModel):
    """A training. Relative paths start at the configuration's folder."""

    out: str
    """The folder for checkpoints, logs and the finished model."""
    model: ModelConfig
    """The model; a path alone means `{path: …}`."""
    data: str
    """The packed dataset: a folder or URL that `packtrain run` wrote."""
    rows_per_step: int = Field(ge=1)
    """Packed rows of one optimizer step, over all ranks and accumulation steps: the same rows whatever their number."""
    rows_per_device: int = Field(default=1, ge=1)
    """Rows of one forward pass on one device. Accumulation follows: rows_per_step / (ranks · rows_per_device)."""
    epochs: int = Field(default=1, ge=1)
    """How often the data is read. `trainer.max_steps` ends a training earlier."""
    seed: int = Field(default=0, ge=0)
    """Seed of the row order, of random weights and of dropout."""
    loader: LoaderConfig = LoaderConfig()
    """Rarely needed options of the loader."""
    attention: Literal["auto", "packed_varlen", "flash_attention_2", "sdpa", "eager"] = "auto"
    """How documents are kept apart; docs/isolation.md. `auto` takes the fastest that the model allows."""
    probe: bool = True
    """Prove before the first step, and after resuming, that no document sees another. Switch it off only for rows of
    one document."""
    loss_kernel: Literal["auto", "none", "chunked", "liger"] = "auto"
    """How the cross-entropy is computed; all agree. `none` holds the logits of all trained tokens at once."""
    preference: PreferenceConfig | None = None
    """Train on preference pairs; for data of packed pairs, and only for those."""
    offload_activations: bool = False
    """Keep activations in the host's memory between forward and backward. Beside gradient checkpointing, which keeps
    only the inputs of layers, it gains almost nothing."""
    lora: dict[str, Any] | None = None
    """Train low-rank adapters instead of the weights; needs peft."""
    eval: EvalConfig | None = None
    """Measure the loss on held-out data."""
    tokenizer: str | None = None
    """Folder of the tokenizer to save with the model; null for the one that packed the data, if this machine still has
    it."""
    export: bool = True
    """Save the finished model, in the folder `model` in `out`."""
    trainer: dict[str, Any] = Field(default={})
    """transformers.TrainingArguments: `learning_rate`, `lr_scheduler_type`, `bf16`, `save_steps` and all the others."""

    @field_validator("model", mode="before")
    @classmethod
    def _model_path(cls, value: Any) -> Any:
        """A path alone is `{path: …}`."""
        return {"path": value} if isinstance(value, str) else value

    @field_validator("trainer")
    @classmethod
    def _owned(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Refuse keys of `trainer:` that packtrain decides, all of them in one error."""
        problems = [f"trainer.{key} cannot be set: {OWNED[key]}" for key in value if key in OWNED]
        for name in ("save_strategy", "logging_strategy"):
            if value.get(name) == "epoch":
                steps = name.replace("strategy", "steps")
                problems.append(f"trainer.{name}: steps may cross epochs; use steps, with {steps}")
        if problems:
            raise ValueError("; ".join(problems))
        return value

    @model_validator(mode="after")
    def _fits(self) -> "TrainConfig":
        """Refuse keys that exclude each other."""
        if self.rows_per_step % self.rows_per_device:
            raise ValueError(
                f"rows_per_step ({self.rows_per_step}) must be a multiple of rows_per_device ({self.rows_per_device}); "
                f"take {nearest(self.rows_per_step, self.rows_per_device)}"
            )
        if self.preference is not None and self.loss_kernel in ("chunked", "liger"):
            raise ValueError(
                f"loss_kernel: {self.loss_kernel} sums over tokens before pairs are known; take auto or none"
            )
        if self.offload_activations and (self.loss_kernel == "liger" or "torch_compile_mode" in self.trainer):
            raise ValueError(
                "offload_activations holds copies of activations: Liger's cross-entropy (loss_kernel: liger) writes "
                "gradients over them, and graphs of CUDA (trainer.torch_compile_mode) overwrite them while they are "
                "copied. Leave offloading out, or take loss_kernel: chunked and no such mode"
            )
        return self

    def place(self, text: str, base: Path) -> str:
        """A dataset's URL, or its folder under `base`."""
        return text if "://" in text else str(base / text)

    def remote(self, base: Path) -> dict[str, Any]:
        """The options by which `PackedRows` opens remote shards; those that are not configured are left out."""
        options = self.loader.model_dump(include={"cache", "cache_bytes", "storage_options"}, exclude_none=True)
        if "cache" in options:
            options["cache"] = str(base / options["cache"])
        return options

    def loader_options(self, base: Path) -> dict[str, Any]:
        """The options of `PackedLoader`, but for the rows of a step and the ranks."""
        # All keys of `loader:` but the three that `remote` gives.
        of_batches = self.loader.model_dump(exclude={"cache", "cache_bytes", "storage_options"})
        return {"seed": self.seed, "epochs": self.epochs, **of_batches, **self.remote(base)}


def validated(config: TrainConfig | Mapping[str, Any]) -> TrainConfig:
    """A validated configuration.

    Raises:
        ConfigError: names the key, and what is wrong.
    """
    try:
        return config if isinstance(config, TrainConfig) else TrainConfig.model_validate(config)
    except ValidationError as error:
        lines = [
            f"the configuration: {'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
        ]
        # pydantic puts "Value error, " before the message of a validator.
        raise ConfigError("\n".join(lines).replace("Value error, ", "")) from None


def training_arguments(config: TrainConfig, base: Path, ranks: int) -> Any:
    """transformers.TrainingArguments of a configuration. It also joins the process group, where there are ranks.

    Args:
        base: where the paths of files start.

    Raises:
        ConfigError: a key is unknown, transformers refuses a value (it is quoted), or the rows of a step cannot be
            divided among the ranks.
    """
    import torch
    from transformers import TrainingArguments

    arguments = {**_DEFAULTS, **_checked_arguments(config.trainer, base)}
    if not torch.accelerator.is_available():
        arguments.setdefault("use_cpu", True)  # transformers asks for it before it computes in bfloat16 on a CPU
    if config.eval is not None:
        arguments["eval_strategy"] = "steps"
        # Without `every`, `set_up` sets it when the number of steps is known. Until then it is the interval of
        # checkpoints, because transformers compares the two, and refuses load_best_model_at_end where they do not fit.
        arguments["eval_steps"] = config.eval.every or arguments.get("save_steps", 500)
    rows_of_ranks = ranks * config.rows_per_device
    micro_batches = divisible(config.rows_per_step, rows_of_ranks) // rows_of_ranks  # refused if not a whole number
    try:
        return TrainingArguments(
            **arguments,
            output_dir=str(base / config.out),
            seed=config.seed,
            # DeepSpeed's "auto" values are computed from these two when the arguments are made.
            per_device_train_batch_size=config.rows_per_device,
            gradient_accumulation_steps=micro_batches,
            remove_unused_columns=False,
            ignore_data_skip=True,
        )
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        raise ConfigError(
            f"trainer: transformers.TrainingArguments refuses it: {error}; fix that key, or leave it out"
        ) from error


def _checked_arguments(keys: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The keys of `trainer:`, with values of the types that transformers.TrainingArguments declares.

    transformers checks the values of enumerations and dictionaries, but takes any value for a number: a text would fail
    much later, in a step.

    Raises:
        ConfigError: a key is unknown, or a value is of another type.
    """
    from transformers import TrainingArguments

    hints = get_type_hints(TrainingArguments)
    types = {field.name: hints[field.name] for field in fields(TrainingArguments) if field.init}
    arguments: dict[str, Any] = {}
    for key, value in keys.items():
        if key not in types:
            raise ConfigError(
                f"trainer.{key}: transformers.TrainingArguments has no such key{did_you_mean(key, sorted(types))}"
            )
        if types[key] in _PLAIN:
            try:
                converted = TypeAdapter(types[key]).validate_python(value)
            except ValidationError as error:
                raise ConfigError(f"trainer.{key}: {value!r:.60}: {error.errors()[0]['msg']}") from None
            # YAML reads 1e-3 as text. Everything else stays as it was given, as in a program that makes the arguments.
            value = converted if isinstance(value, str) else value
        elif key in ("deepspeed", "fsdp_config") and isinstance(value, str) and (base / value).is_file():
            value = str(base / value)
        # transformers 5.23 renamed gradient checkpointing, and warns of the old name.
        new_key = key.replace("gradient_checkpointing", "activation_checkpointing")
        arguments[new_key if new_key in types else key] = value
    return arguments
