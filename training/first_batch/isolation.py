"""Whether a model keeps the documents of a batch apart, by gradients, as it is: wrapped, compiled, patched.

`probe` tests a model on documents of its own; this is the same test on the batch that trains, cheap enough for long
rows: one forward pass to the last hidden states (no logits, no loss), and two backward passes for each bit of the
documents' numbers, 2·⌈log₂ D⌉, which show all pairs of D documents in both directions.
"""

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from ..attention.model_parts import unwrap
from ..attention.probe_setup import is_compiled, undisturbed
from ..model import message_of
from .documents import FoundDocument
from .ranks import highest_of_ranks

UNTESTED = "isolation could not be tested: "


class _HiddenStatesKnown(Exception):  # noqa: N818  # not an error
    """Ends a forward pass: logits and loss would only take memory."""


def find_leak(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], shape: tuple[int, int], documents: list[FoundDocument]
) -> str:
    """Which document another one sees, or why that could not be tested; empty if documents are kept apart.

    On several ranks all must call it, with the batches of the same step, because passes of sharded models are
    collective. Gradients, modes, buffers and random generators are afterwards as they were.

    Args:
        module: what the trainer calls.
        args, kwargs: with which it calls it.
        shape: (B, T) of the batch.
    """
    # 5 documents have the numbers 000 to 100 and so 3 bits. All ranks take those of the rank with most documents.
    bits = highest_of_ranks((len(documents) - 1).bit_length() or 1, next(module.parameters()).device)
    with ExitStack() as stack:
        stack.enter_context(undisturbed(module))()
        stack.enter_context(_checkpoints_for_autograd(module))
        stack.enter_context(_nothing_stays_compiled(module))
        stack.enter_context(torch.enable_grad())
        sharded = any(type(part).__name__.startswith(("FSDP", "FullySharded")) for part in module.modules())
        states = None
        for bit, value in product(range(bits), (0, 1)):  # any two documents differ in some bit
            if states is None or sharded:  # whose weights are gone after a backward pass
                states = _pass(module, args, kwargs, shape, to_the_end=sharded)
            if isinstance(states, str):
                return UNTESTED + states
            summed = [(number >> bit) % 2 == value for number in range(len(documents))]
            try:
                if problem := _find_gradient(states, shape, documents, summed):
                    return problem
            except RuntimeError as error:
                return UNTESTED + message_of(error)
    return ""


class _States(NamedTuple):
    """Of one forward pass."""

    embedded: torch.Tensor
    """The embeddings, cut off from what made them."""
    hidden: torch.Tensor
    """(B, T, H) the last hidden states."""


def _pass(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], shape: tuple[int, int], *, to_the_end: bool
) -> _States | str:
    """One forward pass, or why it shows nothing.

    Args:
        to_the_end: run everything, for hooks that must; else it ends with the hidden states.
    """
    bare = unwrap(module)
    embedded: list[torch.Tensor] = []
    hidden: list[torch.Tensor] = []

    def cut(part: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        embedded.append(output.detach().clone().requires_grad_(True))
        return embedded[-1].clone()  # some models change it in place

    def keep(part: Any, inputs: Any, output: Any) -> None:
        states = output if isinstance(output, torch.Tensor) else output[0]
        hidden.append(states.reshape(*shape, -1))
        if not to_the_end:
            raise _HiddenStatesKnown

    if hasattr(bare, "get_input_embeddings"):
        embedding = bare.get_input_embeddings()
        decoder = bare.get_decoder() if hasattr(bare, "get_decoder") else getattr(bare, "base_model", bare)
    else:  # not of transformers: the largest embedding, and the outputs
        tables = [part for part in bare.modules() if isinstance(part, torch.nn.Embedding)]
        embedding = max(tables, key=lambda part: part.num_embeddings, default=None)
        decoder = bare
    if embedding is None or decoder is None:
        return "it has no embeddings"
    hooks = [embedding.register_forward_hook(cut), decoder.register_forward_hook(keep)]
    try:
        module(*args, **kwargs)
    except _HiddenStatesKnown:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    if len(embedded) != 1 or len(hidden) != 1:
        return f"its embedding ran {len(embedded)} times, and its decoder {len(hidden)}"
    return _States(embedded[0], hidden[0])


def _find_gradient(states: _States, shape: tuple[int, int], documents: list[FoundDocument], summed: list[bool]) -> str:
    """One backward pass, from the hidden states of some documents (`summed`, one for each) to the embeddings of the
    others, which must have no gradient.
    """
    embedded, hidden = states
    numbers = np.full(shape, -1)
    for number, document in enumerate(documents):
        numbers[document.row, document.begin : document.end] = number
    number_at = torch.from_numpy(numbers).to(hidden.device)
    # True for tokens of documents; of them, those of the documents whose states are added up.
    inside = number_at >= 0
    above = inside & torch.tensor(summed, device=hidden.device)[number_at]
    # Each hidden state by a random factor, so that no gradients cancel out.
    factors = torch.randn(hidden.shape, device=hidden.device, dtype=torch.float32).to(hidden.dtype)
    (gradient,) = torch.autograd.grad((hidden * factors * above[..., None]).sum(), [embedded], retain_graph=True)
    # (B, T): how strongly the sum depends on each token, the largest of its dimensions.
    size = gradient.float().abs().amax(-1).reshape(shape).to(hidden.device)
    if not bool(size[inside].isfinite().all()):
        return f"{UNTESTED}gradients are not numbers (NaN or infinite)"
    if bool(above.any()) and not float(size[above].max()) > 0:
        return f"{UNTESTED}documents have no gradient with respect to themselves"
    leak = size * (inside & ~above)
    if not float(leak.max()) > 0:
        return ""
    row, place = divmod(int(leak.argmax()), shape[1])
    document = documents[numbers[row, place]]
    return (
        f"other documents see the one at tokens {document.begin:,} to {document.end:,} of row {document.row} of the "
        f"batch (gradient {float(leak.max()):.2g}, and must be 0)"
    )


@contextmanager
def _checkpoints_for_autograd(model: Any) -> Iterator[None]:
    """Gradient checkpoints of the kind that gives gradients of chosen tensors (reentrant ones do not)."""
    name = "_gradient_checkpointing_func"
    changed = [(part, vars(part)[name]) for part in model.modules() if name in vars(part)]
    try:
        for part, _ in changed:
            setattr(part, name, functools.partial(checkpoint, use_reentrant=False))
        yield
    finally:
        for part, function in changed:
            setattr(part, name, function)


@contextmanager
def _nothing_stays_compiled(model: Any) -> Iterator[None]:
    """Compiled code does not look at hooks again: what was compiled with ours would go on running them."""
    if not is_compiled(model):
        yield
        return
    try:
        torch._dynamo.reset()
        yield
    finally:
        torch._dynamo.reset()
