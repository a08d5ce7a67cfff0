"""A warning, with its likely causes, when a training begins unlike what its model and data let one expect.

1. Before the first step the loss of a few documents is measured, each run alone: no packing, no masks, nothing that
   could go wrong between documents. A model that guesses has a loss of ln(V), V the size of its vocabulary.
2. The first line that is logged must be about that loss, for the weights have hardly moved; later early ones must not
   rise far above it. Gradient norms must be finite, not zero, and not far above those before.

Nothing is stopped: it is for a person to judge. Each kind of warning is given once.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from ...schemas.rows import IGNORE_INDEX
from ..batch import flatten, unpack
from ..shard import Strip
from .loss import LossMean, targets, token_losses_in_chunks

_LOG = logging.getLogger(__name__)
DOCUMENTS = 8
"""That are run alone."""
MOST_TOKENS = 4096
"""Of one of them; longer ones are cut."""
EARLY = 50
"""Steps in which warnings are given."""
NEAR = 0.25
"""How far, relatively, the first loss may be from the documents' own, if their spread does not explain more."""
STEEP = 10.0
"""Times the smallest gradient norm so far."""
RISEN = 1.5
"""Times the documents' own loss."""


@dataclass(frozen=True, slots=True)
class Alone:
    """The loss of documents, each run by itself."""

    sums: tuple[float, ...]
    """Of each document's trained tokens."""
    counts: tuple[int, ...]

    @property
    def loss(self) -> float:
        """The mean over tokens; NaN where none is trained."""
        tokens = sum(self.counts)
        return sum(self.sums) / tokens if tokens else math.nan

    @property
    def error(self) -> float:
        """Standard error of `loss` as that of the whole data, documents being a sample (ratio estimator)."""
        number, tokens = len(self.counts), sum(self.counts)
        if number < 2 or not tokens:
            return math.inf
        residuals = [total - self.loss * count for total, count in zip(self.sums, self.counts, strict=True)]
        return math.sqrt(sum(r * r for r in residuals) * number / (number - 1)) / tokens


@dataclass(frozen=True, slots=True)
class Finding:
    """Something abnormal."""

    kind: str
    """A short stable word."""
    message: str


def documents_alone(
    model: Any, documents: Sequence[Strip], logits: Callable[..., torch.Tensor], *, padded: bool = False
) -> Alone:
    """Run documents one at a time, without gradients, and leave the model in the mode that it was in.

    Args:
        model: what `logits` calls.
        documents: one piece each.
        logits: `logits(model, batch, targets)`: (n, V) those that predict the trained tokens.
        padded: as batches of `batching: padded` are, with a mask.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    sums, counts = [], []
    try:
        with torch.no_grad():
            for document in documents:
                batch = unpack([document]) if padded else flatten([document])
                wanted = targets(batch, LossMean.TOKEN).to(device)
                batch = {key: v.to(device) if isinstance(v, torch.Tensor) else v for key, v in batch.items()}
                found = logits(model, batch, wanted)
                sums.append(float(token_losses_in_chunks(found, wanted.tokens).sum()))
                counts.append(len(wanted.tokens))
    finally:
        model.train(was_training)
    return Alone(tuple(sums), tuple(counts))


def some_documents(corpus: Any, number: int = DOCUMENTS) -> list[Strip]:
    """The first documents of a corpus that have a trained token; fewer where its first rows have fewer."""
    found: list[Strip] = []
    for index in range(min(len(corpus), 4 * number)):
        row, begin = corpus.row(index), 0
        for length in row.seq_lengths.tolist():
            part = slice(begin, begin + min(length, MOST_TOKENS))
            size = np.array([part.stop - begin], dtype=np.int32)
            strip = Strip(row.input_ids[part], row.labels[part], row.position_ids[part], size)
            if (strip.labels[1:] != IGNORE_INDEX).any():
                found.append(strip)
            if len(found) == number:
                return found
            begin += length
    return found


class Alarm(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Give it to the trainer as a callback.

    Args:
        measure: the documents' own loss, when training begins; None for no warnings. Every rank calls it, and gets
            the same.
        vocabulary: V.
        say: gives a warning to a person; by default, the log.
    """

    def __init__(
        self, measure: Callable[[], Alone | None], vocabulary: int, say: Callable[[str], None] = _LOG.warning
    ) -> None:
        self.measure, self.guessing, self.say = measure, math.log(max(2, vocabulary)), say
        self.alone: Alone | None = None
        self.findings: list[Finding] = []
        self._began = 0
        self._norms: list[float] = []
        self._compared = self._silent = False

    @classmethod
    def of(cls, trainer: Any) -> "Alarm":
        """For a PackedTrainer: a few of its own documents, through its own forward pass."""

        def measure() -> Alone | None:
            # A compiled model would be compiled for every length; a sharded one can only be run as it is wrapped.
            sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
            model = trainer.model_wrapped if sharded else trainer.model
            documents = some_documents(trainer.loader.corpus)
            longest = max((len(document.input_ids) for document in documents), default=0)
            unknown = any(int(document.input_ids.max()) >= trainer.vocabulary for document in documents)
            if unknown or (trainer.positions is not None and longest > trainer.positions):
                return None  # the first batch will be refused for it
            with trainer.accelerator.autocast():
                return documents_alone(model, documents, trainer.forward.logits, padded=trainer.batching == "padded")

        return cls(measure, trainer.vocabulary)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        self._began, self._norms, self._compared = state.global_step, [], False
        self._silent = not state.is_world_process_zero
        self.alone = self.measure()
        if self.alone is None:
            return
        loss = self.alone.loss
        if math.isnan(loss):
            causes = (
                "no token of the first documents is trained, or the model's output is not a number: look at the mask "
                "with packtrain inspect, and at the model's weights"
            )
            self._find("alone_nan", f"the loss of single documents is not a number; {causes}")
        elif loss > 1.3 * self.guessing:
            self._find(
                "worse_than_guessing",
                f"single documents have a loss of {loss:.2f}, and guessing among all tokens would have "
                f"{self.guessing:.2f}. Likely causes: the data was packed with another tokenizer than the model's, "
                "weights that were not loaded or are damaged, or a dtype too narrow for this model",
            )
        elif loss < 0.02:
            self._find(
                "known_already",
                f"single documents have a loss of {loss:.4f} before any training. Likely causes: the model has been "
                "trained on this data, or labels are shifted twice, so that each token predicts itself",
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """See transformers."""
        steps = state.global_step - self._began
        if not logs or "loss" not in logs or steps > EARLY or self.alone is None:
            return
        self._look_at_loss(float(logs["loss"]), state.global_step)
        if logs.get("grad_norm") is not None:
            self._look_at_norm(float(logs["grad_norm"]), state.global_step)

    def _look_at_loss(self, loss: float, step: int) -> None:
        assert self.alone is not None
        expected = self.alone.loss
        first, self._compared = not self._compared, True
        if not math.isfinite(loss):
            self._find(
                "not_finite",
                f"the loss of step {step:,} is {loss}. Likely causes: a learning rate that is too high, float16 "
                "without a loss scaler, or weights that are not numbers",
            )
        elif loss == 0:
            self._find(
                "nothing_trained",
                f"the loss of step {step:,} is 0: none of its tokens is trained. See the mask with packtrain inspect",
            )
        elif math.isnan(expected):
            return
        elif first:
            room = max(NEAR * expected, 4 * self.alone.error if math.isfinite(self.alone.error) else 0.0)
            if abs(loss - expected) > room:
                above = loss > expected
                causes = (
                    "documents of a row that are in each other's way (positions, attention), labels shifted twice, a "
                    "learning rate without warm-up, or first documents that are unlike the rest"
                    if above
                    else "documents of a row that see each other, so that copies are read off, or first documents that "
                    "are unlike the rest"
                )
                self._find(
                    "unlike_alone",
                    f"the loss at step {step:,} is {loss:.3f}, and that of {len(self.alone.counts)} documents run "
                    f"alone was {expected:.3f} ± {self.alone.error:.3f}. Likely causes: {causes}. packtrain probe "
                    "tells whether documents are apart",
                )
        elif loss > RISEN * expected and loss > expected + 0.5:
            self._find(
                "rising",
                f"the loss has risen to {loss:.3f} at step {step:,}, from {expected:.3f} of documents before training. "
                "Likely causes: a learning rate that is too high, too short a warm-up, or no gradient clipping",
            )

    def _look_at_norm(self, norm: float, step: int) -> None:
        if not math.isfinite(norm):
            self._find(
                "norm_not_finite",
                f"the gradient norm of step {step:,} is {norm}. Likely causes: float16 overflow (the scaler skips such "
                "a step; many of them are a fault), a learning rate that is too high, or broken weights",
            )
            return
        if norm == 0:
            self._find(
                "no_gradient",
                f"the gradient norm of step {step:,} is 0: nothing is learned. Likely causes: a step without a trained "
                "token, frozen weights, or a learning rate so high that the model no longer looks at its input",
            )
        elif self._norms and norm > STEEP * min(self._norms) and norm > 1:
            self._find(
                "steep",
                f"the gradient norm of step {step:,} is {norm:.3g}, and has been {min(self._norms):.3g}. Likely "
                "causes: a learning rate that is too high, a damaged or foreign document (packtrain loader --explain "
                "names those of a step), or a sum of losses in place of a mean",
            )
        if norm > 0:
            self._norms.append(norm)

    def _find(self, kind: str, message: str) -> None:
        if any(found.kind == kind for found in self.findings):
            return
        self.findings.append(Finding(kind, message))
        if not self._silent:
            self.say(message)
