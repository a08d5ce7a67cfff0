"""What a training starts from: its arguments, rows, model, reference and loss, made in this order.

All of it is made before transformers' Trainer gets the model, because that wraps, moves and shards what it is given,
and neither the head nor the attention of a wrapped model can be changed.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError
from ...schemas.units import plural
from ..attention.packed_attention import Applied, use_packed
from ..branches import require_attention
from ..loader import PackedLoader
from ..models.limits import check_fits
from ..models.model import add_adapters, load_model, may_leave_weights_unused, name_dataset
from ..models.reward_model import score_every_position
from ..models.tokenizer import find_tokenizer, refuse_other_tokenizer
from ..preference.reference_pass import hash_weights
from ..rank_info import detect_rank
from . import Say
from .checkpoint import settings_of
from .heads import chunk_losses, fuse_loss
from .held_out import HeldOut, held_out_loader, open_held_out
from .loss import Forward
from .objective import Objective, TokenObjective
from .pair_objective import PairObjective, check_rows_fit_loss
from .pair_reference import REFERENCE, FirstLossProof, PairReference
from .train_config import PreferenceConfig, TrainConfig, training_arguments

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """What a training starts from."""

    args: Any
    """transformers.TrainingArguments, with the number of steps that the data gives."""
    loader: PackedLoader
    """Of the training rows, at its beginning."""
    held_out: HeldOut | None
    """The rows that are evaluated; None if none are."""
    tokenizer: Any
    """Saved with the model; None if this machine does not have the one that packed the data."""
    model: Any
    """With its adapters, its attention and the head for its loss; on the CPU, unless it is quantised."""
    attention: Applied
    """The attention that the model has now, and its kernel."""
    reference: PairReference | None
    """The log-probabilities that preference pairs are compared with; None if the loss compares with none."""
    objective: Objective
    """What is minimised."""
    settings: dict[str, Any]
    """What must be the same when the training is resumed, see `settings_of`."""


def set_up(config: TrainConfig, base: Path, say: Say) -> TrainingSetup:
    """Make what a training starts from, and refuse what does not go together.

    Args:
        base: where relative paths start.
        say: prints a line, on the first rank only.

    Raises:
        ConfigError: settings that do not go together; says which, and what to do.
        InputError, IntegrityError: of the data, see `PackedRows`; or it does not fit the model.
        AttentionError: the model cannot change its attention.
    """
    args = training_arguments(config, base, detect_rank().world_size)
    micro_batches = args.gradient_accumulation_steps
    loader = PackedLoader(
        config.place(config.data, base),
        rows_per_step=config.rows_per_step,
        accumulate=micro_batches,
        **config.loader_options(base),
    )
    held_out = open_held_out(config, base)
    # `corpus` are the rows that the loader reads.
    packed = [loader.corpus] if held_out is None else [loader.corpus, held_out.rows]
    for rows in packed:
        check_rows_fit_loss(config.preference, rows)
    tokenizer = find_tokenizer(base / config.tokenizer if config.tokenizer else None, loader.corpus)
    if tokenizer is not None and config.model.path is not None:
        refuse_other_tokenizer(base / config.model.path, tokenizer)

    # Whether a reward model is trained: it scores documents in place of predicting tokens.
    scores = config.preference is not None and config.preference.scores
    model = load_model(config.model, base, config.seed, scores=scores)
    if scores:
        score_every_position(model, loader.corpus.manifest.pad_id)
    # Before there are adapters: the reference is the model without them.
    reference = _reference(config, base, model, held_out_rows=0 if held_out is None else len(held_out))
    model = add_adapters(model, config.lora, config.seed, scores=scores)
    check_fits(model, name="the data", rows=loader.corpus, padded=config.loader.static_shapes)
    if held_out is not None:  # its batches are never padded to static shapes
        check_fits(model, name="the held-out data", rows=held_out.rows)
    name_dataset(model, loader.corpus)

    _set_steps(args, config, steps=len(loader) // micro_batches)  # the loader counts micro-batches
    if args.n_gpu > 1:
        _LOG.warning("this process uses one of %d GPUs; start one process for each, with torchrun", args.n_gpu)
        args._n_gpu = 1  # transformers would split batches by nn.DataParallel
    if args.ddp_find_unused_parameters is None:  # looking for them costs a walk through the graph in every step
        args.ddp_find_unused_parameters = may_leave_weights_unused(model)
    settings = settings_of(args, model, config.rows_per_step, config.preference)

    attention = use_packed(model, config.attention)
    # Only some kinds of attention can follow documents that share tokens. The loader needs it for such rows, too. An
    # unpacked loader gives each document a row of its own, where nothing is shared.
    for rows in packed:
        if rows.shares_tokens and not loader.unpacked:
            require_attention(attention, rows.files.address)
    loader.attention = attention
    objective: Objective
    if config.preference is None:
        objective = _token_objective(config, model, is_cuda=args.device.type == "cuda")
    else:
        objective = _pair_objective(config, config.preference, model, loader.corpus.row_length, reference, say)
    return TrainingSetup(args, loader, held_out, tokenizer, model, attention, reference, objective, settings)


def _reference(config: TrainConfig, base: Path, model: Any, held_out_rows: int) -> PairReference | None:
    """The reference of a loss of pairs; None if tokens are trained, or the loss compares with none.

    Args:
        model: as it is loaded, before adapters and before the weights of a checkpoint. The hash of its weights says
            whose log-probabilities the reference's file must hold.
        held_out_rows: how many held-out rows are evaluated.
    """
    preference = config.preference
    if preference is None or not preference.needs_reference:
        return None
    file = base / (preference.reference or Path(config.out) / REFERENCE)
    held_out = held_out_loader(config, base, detect_rank().world_size)
    return PairReference(file, hash_weights(model), held_out, held_out_rows)


def _set_steps(args: Any, config: TrainConfig, steps: int) -> None:
    """Set how many steps transformers makes, and when it evaluates.

    Args:
        args: transformers.TrainingArguments.
        steps: how many the data gives.

    Raises:
        ConfigError: more steps are configured.
    """
    if args.max_steps > steps:
        # The message rounds up how often the data must be read.
        raise ConfigError(
            f"max_steps={args.max_steps:,}, but the data gives {plural(steps, 'step')}; take fewer steps, or read "
            f"the data about {-(-args.max_steps // max(1, steps)):,} times as often (epochs)"
        )
    if args.max_steps <= 0:  # -1 where the configuration sets none
        args.max_steps = steps
    if config.eval is not None and config.eval.every is None:
        args.eval_steps = args.max_steps  # once, at the end


def _token_objective(config: TrainConfig, model: Any, *, is_cuda: bool) -> TokenObjective:
    """The mean loss over tokens. The model's head may be changed for it."""
    fused = fuse_loss(model, config.loss_kernel, cuda=is_cuda)
    return TokenObjective(Forward(model, fused=fused, every_position=config.loader.static_shapes))


def _pair_objective(
    config: TrainConfig,
    preference: PreferenceConfig,
    model: Any,
    row_length: int,
    reference: PairReference | None,
    say: Say,
) -> PairObjective:
    """The mean loss over preference pairs. The model's head may be changed for it.

    Args:
        row_length: most tokens of a row.
    """
    # With `none`, the logits of all tokens are wanted at once. A reward model has no logits of tokens.
    chunked = None
    if config.loss_kernel == "auto" and not preference.scores:
        chunked = chunk_losses(model, config.rows_per_device * row_length)
    # Of dpo alone is the first loss known: ln 2.
    proof = None
    if preference.loss == "dpo" and reference is not None:
        is_half = bool(config.trainer.get("bf16") or config.trainer.get("fp16"))
        proof = FirstLossProof(preference.beta, reference.file, model, is_half=is_half, say=say)
    forward = Forward(model, every_position=config.loader.static_shapes, chunked=chunked)
    return PairObjective(preference, forward, proof)
