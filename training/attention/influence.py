"""How strongly tokens depend on each other in a model as it is: wrapped, compiled, patched.

By gradients of the last hidden states with respect to embeddings: one forward pass, which ends there (no logits, no
loss), and a backward pass for each group of tokens that is asked about.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..models.model import is_out_of_memory, message_of
from ..models.model_parts import unwrap
from .probe_setup import is_compiled


class UntestedError(RuntimeError):
    """Gradients cannot be had."""


class _HiddenStatesKnown(Exception):  # noqa: N818  # not an error
    """Ends a forward pass when it has the hidden states: logits and loss would only take memory."""


def influences(model: Any, call: Callable[[], Any], groups: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """For each group of tokens, float32 (B, T): how strongly the group's hidden states depend on every token.

    Call it within `undisturbed` and `comparable_gradients`. On several ranks all must call it with the same number of
    groups, because passes of sharded models are collective.

    Args:
        model: also within PEFT, DDP, FSDP or torch.compile.
        call: makes one forward pass of a batch of B rows of T tokens.
        groups: bool (B, T) masks.

    Raises:
        UntestedError: the model has no embeddings, or does not run them and its decoder exactly once; or there are no
            gradients.
        Exception: what `call` raises.
    """
    is_sharded = any(type(part).__name__.startswith(("FSDP", "FullySharded")) for part in model.modules())
    states = None
    sizes = []
    with _nothing_stays_compiled(model), torch.enable_grad():
        for group in groups:
            # One forward pass serves all groups, but not of a sharded model: its weights are freed by a backward pass.
            if states is None or is_sharded:
                states = _forward(model, call, to_the_end=is_sharded)
            embedded, hidden = states
            hidden = hidden.reshape(*group.shape, -1)  # (B, T, dimensions), also of models that give (T, dimensions)
            # One backward pass for all states of the group: each by a random factor, so that no gradients cancel out.
            factors = torch.randn(hidden.shape, device=hidden.device, dtype=torch.float32).to(hidden.dtype)
            total = (hidden * factors * group.to(hidden.device)[..., None]).sum()
            try:
                (gradient,) = torch.autograd.grad(total, [embedded], retain_graph=True)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                raise UntestedError(message_of(error)) from error
            # Of each token the largest of its dimensions, which is 0 only if all are.
            sizes.append(gradient.float().abs().amax(-1).reshape(group.shape).to(group.device))
    return sizes


class _Recorder:
    """Hooks of one forward pass that record the embeddings and the last hidden states."""

    def __init__(self, *, to_the_end: bool) -> None:
        self.to_the_end = to_the_end
        self.embedded: list[torch.Tensor] = []
        self.hidden: list[torch.Tensor] = []

    def record_embeddings(self, part: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        """Called with the output of the embedding. The model goes on with a copy that needs gradients, and a backward
        pass ends at this copy. So there are gradients also where no weight needs any, as with LoRA.
        """
        embeddings = output.detach().clone().requires_grad_(True)
        self.embedded.append(embeddings)
        return embeddings.clone()  # some models change it in place, which a leaf of the graph does not allow

    def record_hidden(self, part: Any, inputs: Any, output: Any) -> None:
        """Called with the output of the decoder: the hidden states, or a tuple or an object that has them first."""
        self.hidden.append(output if isinstance(output, torch.Tensor) else output[0])
        if not self.to_the_end:
            raise _HiddenStatesKnown


def _forward(model: Any, call: Callable[[], Any], *, to_the_end: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """One forward pass: the embeddings, cut off from what made them, and the last hidden states.

    Args:
        to_the_end: whether also to compute logits and loss. Sharded models need it: hooks at the end of their forward
            pass free the weights that it gathered, and prepare the backward pass.

    Raises:
        UntestedError: the model has no embeddings, or does not run them and its decoder exactly once.
    """
    recorder = _Recorder(to_the_end=to_the_end)
    embedding, decoder = _embedding_and_decoder(unwrap(model))
    hooks = [
        embedding.register_forward_hook(recorder.record_embeddings),
        decoder.register_forward_hook(recorder.record_hidden),
    ]
    try:
        call()
    except _HiddenStatesKnown:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    # With several embeddings, it would not be known which tokens the gradients are of.
    if len(recorder.embedded) != 1 or len(recorder.hidden) != 1:
        raise UntestedError(f"its embedding ran {len(recorder.embedded)} times, and its decoder {len(recorder.hidden)}")
    return recorder.embedded[0], recorder.hidden[0]


def _embedding_and_decoder(model: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The module that turns token ids into embeddings, and the one that turns embeddings into the last hidden states.

    Args:
        model: without wrappers.

    Raises:
        UntestedError: the model has no embeddings.
    """
    if hasattr(model, "get_input_embeddings"):
        embedding = model.get_input_embeddings()
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
        # Some models name themselves as their decoder, such as Llama 4's. The hidden states come from the part that
        # holds the embeddings, and not from the whole model, whose output begins with the logits.
        if decoder is model:
            decoder = next((part for part in model.children() if embedding in part.modules()), model)
    else:
        # Not a model of transformers. The embedding of token ids is taken to be the one with the most entries, and the
        # model's outputs are taken for hidden states.
        tables = [part for part in model.modules() if isinstance(part, torch.nn.Embedding)]
        embedding = max(tables, key=lambda part: part.num_embeddings, default=None)
        decoder = model
    if embedding is None or decoder is None:
        raise UntestedError("it has no embeddings")
    return embedding, decoder


@contextmanager
def _nothing_stays_compiled(model: Any) -> Iterator[None]:
    """Drop the compiled code of a model before and after our hooks are on it: code that was compiled without them would
    not run them, and code that was compiled with them would go on running them.
    """
    if not is_compiled(model):
        yield
        return
    try:
        torch._dynamo.reset()
        yield
    finally:
        torch._dynamo.reset()
