"""Losses of preference pairs in packed rows, and what they are made of: log-probabilities of whole documents.

A pair is two documents in a row, the chosen one and right behind it the rejected one; `sides` of a batch says which is
which. a is the log-probability of the chosen completion and b the one of the rejected completion, as sums over trained
tokens; ā and b̄ are a and b divided by the number of trained tokens; a prime marks values of the reference model; σ is
the logistic function:

    dpo       -log σ(β·((a - a') - (b - b')))                     Rafailov et al., arXiv:2305.18290
    ipo       ((ā - ā') - (b̄ - b̄') - 1/(2β))²                     Azar et al., arXiv:2310.12036, per token as TRL
    simpo     -log σ(β·(ā - b̄) - γ)                               Meng et al., arXiv:2405.14734
    orpo      -ā - β·log σ(log odds(ā) - log odds(b̄)),            Hong et al., arXiv:2403.07691
              odds(x) = exp(x) / (1 - exp(x))
    reward    -log σ(score of chosen - score of rejected)         Bradley and Terry, 1952

A loop of one's own, for a model that `use_packed` prepared:

    for batch in PackedLoader(data, rows_per_step=8, reference=reference):
        sides = batch.pop("sides")
        reference_sums = batch.pop("reference")
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        logits = model(**inputs, logits_to_keep=predicting_positions(batch)).logits[0]
        logps, counts = document_logps(logits, batch)
        result = preference_loss("dpo", logps, counts, sides, reference_sums, beta=0.1)
        (result.total / result.pairs).backward()

Legend: T tokens of a batch, n of them trained, D documents, P pairs, V the vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from ...schemas.errors import ConfigError, IntegrityError
from ..targets import Targets, document_bounds, document_sums, find_targets, token_losses
from .kinds import LOSSES, refuse_loss

CHOSEN = 0
"""The side of a chosen document."""
REJECTED = 1
"""The side of a rejected document. Padding, and rows that only fill up a step, have -1."""
ACCURACY = "rewards/accuracy"
"""1 where the chosen document has the higher reward, else 0."""
MARGIN = "rewards/margin"
"""By how much the chosen document's reward is the higher one."""
LOGPS_CHOSEN = "logps/chosen"
"""Log-probability of the chosen completion, summed over its tokens."""
LOGPS_REJECTED = "logps/rejected"
"""Log-probability of the rejected completion, summed over its tokens."""
_CERTAIN = -1e-12
"""The largest mean log-probability of which odds are taken: a certain completion, with 0, has infinite odds."""


class DocumentLogps(NamedTuple):
    """The log-probabilities of a batch's documents."""

    sums: torch.Tensor
    """float64 (D,): over the trained tokens of each document, with a gradient."""
    counts: torch.Tensor
    """int64 (D,): how many tokens of each document are trained."""


def predicting_positions(batch: Mapping[str, Any]) -> torch.Tensor:
    """int64 (n,): the positions whose logits predict a trained token, for `logits_to_keep`.

    Args:
        batch: with `labels`, as the loader makes it.
    """
    return find_targets(batch).index


def document_logps(logits: torch.Tensor, batch: Mapping[str, Any]) -> DocumentLogps:
    """The log-probabilities of documents from a model's logits.

    It serves rows whose documents share tokens, too: a document's trained tokens are all in its own piece.

    Args:
        logits: of all positions, (1, T, V), or of an unpacked batch (D, L, V); or (n, V), of the positions that
            `predicting_positions` names.
        batch: `labels`, and where documents begin; as the loader makes it.
    """
    targets = find_targets(batch)
    index = targets.index.to(logits.device)
    predicting = logits if logits.ndim == 2 else logits.flatten(0, 1)[index]  # (n, V)
    # A token's cross-entropy is its negative log-probability.
    losses = token_losses(predicting, targets.tokens.to(logits.device))
    return sum_logps(losses, targets, batch)


def sum_logps(losses: torch.Tensor, targets: Targets, batch: Mapping[str, Any]) -> DocumentLogps:
    """The log-probabilities of documents from the cross-entropies (n,) of their trained tokens.

    Args:
        targets: of the batch.
        batch: says where documents begin.
    """
    bounds = document_bounds(batch)
    # A sum of ones is a count.
    counts = document_sums(torch.ones_like(losses.detach()), targets.index, bounds)
    return DocumentLogps(-document_sums(losses, targets.index, bounds), counts.long())


# Pairs


class Pairs(NamedTuple):
    """Where the documents of a batch's pairs are."""

    chosen: torch.Tensor
    """int64 (P,)"""
    rejected: torch.Tensor
    """int64 (P,): each right behind its chosen document."""

    def to(self, device: torch.device | str) -> "Pairs":
        """The places on a device."""
        return Pairs(self.chosen.to(device, non_blocking=True), self.rejected.to(device, non_blocking=True))


def find_pairs(sides: torch.Tensor) -> Pairs:
    """The pairs of a batch. Documents of padding, and of rows that only fill up a step, are in none.

    Args:
        sides: int8 (D,). Best on the CPU: values on a GPU can only be looked at when it has done all earlier work.

    Raises:
        IntegrityError: a chosen document is not followed by a rejected one.
    """
    # Of the sides 0 1 -1 0 1, the pairs are documents 0 and 1, and 3 and 4.
    chosen = (sides == CHOSEN).nonzero()[:, 0]
    rejected = (sides == REJECTED).nonzero()[:, 0]
    if not torch.equal(chosen + 1, rejected):
        raise IntegrityError(
            "the sides of a batch are not pairs of a chosen document and the rejected one right behind it; run "
            "packtrain verify on the dataset, or pass on `sides` as the loader makes it"
        )
    return Pairs(chosen, rejected)


@dataclass(frozen=True, slots=True)
class PairLosses:
    """The losses of a batch's pairs, and figures to watch."""

    losses: torch.Tensor
    """float64 (P,), with a gradient. A step's loss is the mean over the pairs of all its micro-batches and ranks: the
    sum of all `total`, over the sum of all `pairs`."""
    metrics: dict[str, torch.Tensor]
    """float64 (P,) each, without a gradient: `rewards/accuracy`, `rewards/margin`, `logps/chosen` and `logps/rejected`;
    `reward` has only the first two, because scores are no log-probabilities."""

    @property
    def total(self) -> torch.Tensor:
        """float64 (): the sum over the pairs. Of no pairs it is 0, and all gradients exist and are 0."""
        return self.losses.sum()

    @property
    def pairs(self) -> int:
        """P."""
        return len(self.losses)


@dataclass(frozen=True, slots=True)
class _Sides:
    """What a loss is computed from: float64 (P,) each, β and γ."""

    chosen: torch.Tensor
    """a - a' of each pair if the loss has a reference, else a; or the score of the chosen document."""
    rejected: torch.Tensor
    """The same of the rejected document: b - b', b, or its score."""
    chosen_mean: torch.Tensor
    """`chosen` per trained token. Losses without means do not look at it."""
    rejected_mean: torch.Tensor
    """`rejected` per trained token."""
    beta: float
    gamma: float


class _Terms(NamedTuple):
    """What a loss gives: float64 (P,) each."""

    losses: torch.Tensor
    chosen_rewards: torch.Tensor
    rejected_rewards: torch.Tensor


def _dpo(sides: _Sides) -> _Terms:
    """-log σ(β·((a - a') - (b - b')))."""
    chosen = sides.beta * sides.chosen
    rejected = sides.beta * sides.rejected
    return _Terms(-functional.logsigmoid(chosen - rejected), chosen, rejected)


def _ipo(sides: _Sides) -> _Terms:
    """((ā - ā') - (b̄ - b̄') - 1/(2β))²."""
    # Per token, as TRL after its authors' advice: a square of sums would grow with the length of completions.
    difference = sides.chosen_mean - sides.rejected_mean
    losses = (difference - 1 / (2 * sides.beta)) ** 2
    return _Terms(losses, sides.beta * sides.chosen_mean, sides.beta * sides.rejected_mean)


def _simpo(sides: _Sides) -> _Terms:
    """-log σ(β·(ā - b̄) - γ)."""
    chosen = sides.beta * sides.chosen_mean
    rejected = sides.beta * sides.rejected_mean
    return _Terms(-functional.logsigmoid(chosen - rejected - sides.gamma), chosen, rejected)


def _orpo(sides: _Sides) -> _Terms:
    """-ā - β·log σ(log odds(ā) - log odds(b̄))."""
    log_odds = _log_odds(sides.chosen_mean) - _log_odds(sides.rejected_mean)
    losses = -sides.chosen_mean - sides.beta * functional.logsigmoid(log_odds)
    return _Terms(losses, sides.beta * sides.chosen_mean, sides.beta * sides.rejected_mean)


def _log_odds(mean: torch.Tensor) -> torch.Tensor:
    """log(p / (1 - p)) of p = exp(mean)."""
    mean = mean.clamp(max=_CERTAIN)
    # log p - log(1 - p). By expm1, because 1 - exp(mean) loses all digits where p is near 1.
    return mean - torch.log(-torch.expm1(mean))


def _reward(sides: _Sides) -> _Terms:
    """-log σ(score of chosen - score of rejected)."""
    return _Terms(-functional.logsigmoid(sides.chosen - sides.rejected), sides.chosen, sides.rejected)


TERMS: dict[str, Callable[[_Sides], _Terms]] = {
    "dpo": _dpo,
    "ipo": _ipo,
    "simpo": _simpo,
    "orpo": _orpo,
    "reward": _reward,
}
"""What computes each loss of `kinds.LOSSES`."""


def preference_loss(
    kind: str,
    logps: torch.Tensor,
    counts: torch.Tensor | None,
    sides: torch.Tensor | Pairs,
    reference: torch.Tensor | None = None,
    *,
    beta: float = 0.1,
    gamma: float = 0.5,
) -> PairLosses:
    """The losses of a batch's pairs; the module's text has the formulas.

    The metrics are about rewards. The reward of a chosen document is what its loss compares with the rejected one:
    β·(a - a') for `dpo`, β·(ā - ā') for `ipo`, β·ā for `simpo` and `orpo`, and the score for `reward`.

    Args:
        kind: `dpo`, `ipo`, `simpo`, `orpo` or `reward`.
        logps: (D,) of `document_logps`; for `reward` the scores of the documents.
        counts: (D,) of `document_logps`; `reward` and `dpo` need none.
        sides: int8 (D,) of the batch, or the pairs that were found there.
        reference: (D,) of the batch: log-probabilities by the reference, for `dpo` and `ipo`.
        beta: weight of the comparison.
        gamma: margin of `simpo`.

    Raises:
        ConfigError: there is no such loss, or what it needs is missing.
        IntegrityError: a chosen side is not followed by a rejected one.
    """
    refusal = refuse_loss(kind)
    if refusal is not None:
        raise ConfigError(refusal)
    loss = LOSSES[kind]
    if loss.needs_reference and reference is None:
        raise ConfigError(f"{kind} compares with a reference: give PackedLoader(reference=…), and pass its sums on")
    if loss.per_token and counts is None:
        raise ConfigError(f"{kind} compares log-probabilities per token: give the counts of document_logps, too")
    pairs = (sides if isinstance(sides, Pairs) else find_pairs(sides)).to(logps.device)
    # In float64, because a loss is a small difference of large sums.
    values = logps.double()
    if loss.needs_reference and reference is not None:
        values = values - reference.to(logps.device).double()
    means = values
    if counts is not None:
        means = values / counts.to(logps.device).clamp(min=1)  # padding has no trained tokens, and is in no pair
    compared = _Sides(
        chosen=values[pairs.chosen],
        rejected=values[pairs.rejected],
        chosen_mean=means[pairs.chosen],
        rejected_mean=means[pairs.rejected],
        beta=beta,
        gamma=gamma,
    )
    terms = TERMS[kind](compared)
    margins = (terms.chosen_rewards - terms.rejected_rewards).detach()
    metrics = {ACCURACY: (margins > 0).double(), MARGIN: margins}
    if not loss.scores:
        metrics[LOGPS_CHOSEN] = logps.detach().double()[pairs.chosen]
        metrics[LOGPS_REJECTED] = logps.detach().double()[pairs.rejected]
    return PairLosses(terms.losses, metrics)
