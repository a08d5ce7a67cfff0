"""That torch.compile follows the way through torch's FlashAttention in one graph, for any number of tokens.

The graph is looked at and not run: the kernel is CUDA's. tests/gpu runs it.
"""

from typing import Any

import pytest

pytest.importorskip("torch.nn.attention.varlen")

import torch
from packtrain.training.attention.kernels import flash


def test_one_graph_for_any_length() -> None:
    graphs: list[Any] = []

    def look(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return lambda *given: (torch.zeros(()),)

    torch._dynamo.reset()

    @torch.compile(backend=look, fullgraph=True)  # type: ignore[untyped-decorator]
    def attend(query: Any, key: Any, cu: Any, longest: int) -> Any:
        return flash(query, key, key, cu, longest, scale=0.3, window=5).sum()

    for lengths in ([3, 4], [9, 2, 5], [6, 6, 1, 7], [20, 1], [31]):
        cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
        query, key = (torch.zeros(sum(lengths), heads, 16, dtype=torch.bfloat16) for heads in (4, 2))
        attend(query, key, cu, max(lengths))
    torch._dynamo.reset()
    assert len(graphs) <= 3  # exact, then symbolic in lengths, and in numbers of documents
    calls = [node for node in graphs[-1].graph.nodes if "_varlen_attn" in str(node.target)]
    assert len(calls) == 1
    arguments = calls[0].args
    assert not isinstance(arguments[5], int)  # the longest document is symbolic
    assert arguments[8] == 0.3
    assert [list(one) for one in arguments if isinstance(one, list | tuple)] == [[4, 0]]
