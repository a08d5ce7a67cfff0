"""Attention over a sequence that several processes hold in parts, to prove that the loader's parts fit together.

`Ring`: keys and values travel around the processes, and each adds what its own queries see, with an exact running
softmax (Liu et al., Ring Attention with Blockwise Transformers, 2023). `ulysses`: heads are exchanged for tokens, so
that each process computes all tokens of some heads (Jacobs et al., DeepSpeed Ulysses, 2023).

Legend: H heads, t tokens of a process, T tokens of the sequence, E head dimension.
"""

from collections.abc import Sequence
from typing import Any

import torch
from packtrain.training.attention.kernels import per_document
from torch import distributed


class Ring(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed
    """`Ring.apply(query, key, value, parts, documents)`, each (H, t, E) → (H, t, E).

    `parts`: for each process, which tokens it holds. `documents`: (T,) the document of each token.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, parts: Any, documents: Any
    ) -> torch.Tensor:
        ctx.parts, ctx.documents = parts, documents
        out, total = torch.zeros_like(query), query.new_full((*query.shape[:2], 1), float("-inf"))
        held = (key, value)
        for step in range(len(parts)):
            scores = _scores(query, held[0], step, parts, documents)
            more = torch.logaddexp(total, scores.logsumexp(-1, keepdim=True))
            out = out * (total - more).exp() + (scores - more).exp() @ held[1]
            total = more
            held = _passed_on(held)
        ctx.save_for_backward(query, key, value, out, total)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, out, total = ctx.saved_tensors
        (given,) = gradients
        scale = query.shape[-1] ** -0.5
        shared = (given * out).sum(-1, keepdim=True)
        to_query = torch.zeros_like(query)
        held = (key, value, torch.zeros_like(key), torch.zeros_like(value))
        for step in range(len(ctx.parts)):
            weights = (_scores(query, held[0], step, ctx.parts, ctx.documents) - total).exp()
            slope = weights * (given @ held[1].transpose(1, 2) - shared) * scale
            to_query += slope @ held[0]
            to_key = held[2] + slope.transpose(1, 2) @ query
            held = _passed_on((held[0], held[1], to_key, held[3] + weights.transpose(1, 2) @ given))
        return to_query, held[2], held[3], None, None


def ulysses(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: Sequence[int]) -> torch.Tensor:
    """Attention by packtrain's own kernel over whole documents, for this process's share of the heads.

    Args:
        query, key, value: (H, t, E), a contiguous part of the sequence; H a multiple of the processes.
        bounds: where documents begin in the whole sequence, and its end.
    """
    q, k, v = (_Exchange.apply(each, True).transpose(0, 1) for each in (query, key, value))
    out: torch.Tensor = _Exchange.apply(per_document(q, k, v, bounds).transpose(0, 1).contiguous(), False)
    return out


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """(H, t, E) ↔ (H / processes, T, E)."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, to_heads: bool) -> torch.Tensor:
        ctx.to_heads = to_heads
        return _exchanged(tensor, to_heads)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _exchanged(gradients[0], not ctx.to_heads), None


def _exchanged(tensor: torch.Tensor, to_heads: bool) -> torch.Tensor:
    sent, joined = (0, 1) if to_heads else (1, 0)
    whole = torch.cat([part.contiguous() for part in tensor.chunk(distributed.get_world_size(), sent)]).contiguous()
    got = torch.empty_like(whole)
    distributed.all_to_all_single(got, whole)
    return torch.cat(got.chunk(distributed.get_world_size(), 0), joined)


def _scores(query: torch.Tensor, key: torch.Tensor, step: int, parts: Any, documents: Any) -> torch.Tensor:
    """(H, t, t) of this process's queries with the keys that it holds after some steps; -inf where unseen."""
    here = distributed.get_rank()
    mine, theirs = parts[here], parts[(here - step) % len(parts)]
    seen = (documents[mine][:, None] == documents[theirs]) & (mine[:, None] >= theirs)
    return (query @ key.transpose(1, 2) * query.shape[-1] ** -0.5).masked_fill(~seen, float("-inf"))


def _passed_on(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Send tensors to the next process, and return those of the process before."""
    here, count = distributed.get_rank(), distributed.get_world_size()
    got = tuple(torch.empty_like(each) for each in tensors)
    pending = [distributed.isend(each.contiguous(), (here + 1) % count, tag=i) for i, each in enumerate(tensors)]
    for number, each in enumerate(got):
        distributed.recv(each, (here - 1) % count, tag=number)
    for request in pending:
        request.wait()
    return got
