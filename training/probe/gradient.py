"""The exact probe: checks that the gradient of a document's loss with respect to the other documents' embeddings is
exactly zero.

The gradient of document d's loss with respect to the embeddings of document e is computed for all pairs, with one
backward pass per document. Off the diagonal it is 0 if documents do not see each other, so there is no threshold to
choose. On the diagonal it must not be 0, or the probe does not work.

A hook on the model's embedding layer captures the embeddings. Compiled code ignores hooks, so there they are passed in
as `inputs_embeds`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..attention.apply import unwrap
from ..attention.calls import is_compiled
from .documents import Batch, Call, RandomDocuments, to_device
from .outputs import first_line, loss_of, nan_highest


@dataclass(frozen=True, slots=True)
class Influence:
    """How much each document's loss depends on each document."""

    matrix: tuple[tuple[float, ...], ...]
    """[d][e]: the largest absolute gradient of document d's loss with respect to document e's embeddings."""

    @property
    def leak(self) -> float:
        """The largest value off the diagonal; NaN if any of them is NaN."""
        others = [value for d, row in enumerate(self.matrix) for e, value in enumerate(row) if d != e]
        return max(others, key=nan_highest, default=0.0)

    @property
    def own(self) -> float:
        """The smallest value on the diagonal."""
        return min(row[d] for d, row in enumerate(self.matrix))

    @property
    def worst(self) -> tuple[int, int]:
        """The pair that leaks most: (document of the loss, document of the embeddings)."""
        pairs = [(d, e) for d in range(len(self.matrix)) for e in range(len(self.matrix)) if d != e]
        return max(pairs, key=lambda pair: nan_highest(self.matrix[pair[0]][pair[1]]))


class NoGradientError(Exception):
    """No gradient with respect to embeddings; the message says why. The probe then uses perturbation."""


def influence(model: Any, call: Call, documents: RandomDocuments, device: torch.device) -> Influence:
    """Make one forward and one backward pass per document, the same number on every rank.

    Raises:
        NoGradientError: the callable does not let gradients through to embeddings.
    """
    through = _passed_in if is_compiled(model) else _hooked
    matrix = []
    for document in range(len(documents.lengths)):
        batch = to_device(documents.packed(trained=document), device)
        labels = batch["labels"]
        with torch.enable_grad():
            loss, embeddings = through(model, call, batch, labels)
            if not loss.requires_grad:
                raise NoGradientError("the loss has no gradient")
            try:
                (grad,) = torch.autograd.grad(loss, [embeddings], allow_unused=True)
            except (RuntimeError, AssertionError, AttributeError) as error:
                # re-entrant checkpointing, and engines that control the backward pass
                raise NoGradientError(first_line(error)) from error
        if grad is None:
            raise NoGradientError("the loss does not depend on the captured embeddings")
        owed = grad.detach()[0].abs().amax(dim=-1).float().cpu()
        matrix.append(tuple(float(owed[begin:end].max()) for begin, end in documents.spans))
        del grad, loss, embeddings
    return Influence(tuple(matrix))


def _hooked(model: Any, call: Call, batch: Batch, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    taken: list[torch.Tensor] = []
    with _leaf(unwrap(model), taken):
        loss = loss_of(call(batch), labels)
    if len(taken) != 1:
        raise NoGradientError(f"the embedding of input_ids was used {len(taken)} times in a forward pass")
    return loss, taken[0]


def _passed_in(model: Any, call: Call, batch: Batch, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    embedding = _embedding(unwrap(model))
    with torch.no_grad():
        made = embedding(batch["input_ids"])
    embeddings = made.detach().clone().requires_grad_(True)
    rest = {name: value for name, value in batch.items() if name != "input_ids"}
    try:
        return loss_of(call({**rest, "inputs_embeds": embeddings.clone()}), labels), embeddings
    except (TypeError, KeyError, ValueError) as error:
        raise NoGradientError(f"compiled, and it does not take inputs_embeds: {error}") from error


@contextmanager
def _leaf(model: Any, taken: list[torch.Tensor]) -> Iterator[None]:
    """Detach the graph at the embedding, so that gradients arrive at our own tensor."""

    def cut(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        taken.append(output.detach().clone().requires_grad_(True))
        return taken[-1].clone()  # some models change it in place

    handle = _embedding(model).register_forward_hook(cut)
    try:
        yield
    finally:
        handle.remove()


def _embedding(model: Any) -> torch.nn.Module:
    try:
        found = model.get_input_embeddings()
    except (AttributeError, NotImplementedError) as error:
        raise NoGradientError(f"{type(model).__name__} does not name its embedding") from error
    if not isinstance(found, torch.nn.Module):
        raise NoGradientError(f"{type(model).__name__} does not name its embedding")
    return found
