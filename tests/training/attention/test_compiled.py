"""That torch.compile follows the way through torch's FlashAttention in one graph, for any number of tokens.

The graph is looked at and not run: the kernel is CUDA's. tests/gpu runs it.
"""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
varlen = pytest.importorskip("torch.nn.attention.varlen")

import torch  # noqa: E402
from packtrain.training.attention import kernels  # noqa: E402
from packtrain.training.attention.varlen import packed_varlen  # noqa: E402


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.config, self.layer_idx, self.is_causal = SimpleNamespace(), 0, True


def test_one_graph_for_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    flash = kernels.Kernel("torch varlen (FA2)", True, "as on CUDA", kernels.bind_torch(varlen.varlen_attn))
    monkeypatch.setitem(kernels._CHOSEN, ("cpu", None), flash)
    graphs: list[Any] = []

    def look(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        shapes = [
            node.meta["example_value"].shape
            for node in graph.graph.nodes
            if node.op == "output"
            for node in node.args[0]
        ]
        assert len(shapes) == 1
        return lambda *given: (torch.zeros(()),)

    torch._dynamo.reset()
    layer = Layer()

    @torch.compile(backend=look, fullgraph=True)  # type: ignore[untyped-decorator]
    def attend(query: Any, key: Any, cu: Any, longest: int) -> Any:
        found, _ = packed_varlen(
            layer,
            query,
            key,
            key,
            None,
            scaling=0.3,
            sliding_window=5,
            cu_seq_lens_q=cu,
            cu_seq_lens_k=cu,
            max_length_q=longest,
        )
        return found.sum()

    for lengths in ([3, 4], [9, 2, 5], [6, 6, 1, 7], [20, 1], [31]):
        cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
        query, key = (torch.zeros(1, heads, sum(lengths), 16, dtype=torch.bfloat16) for heads in (4, 2))
        attend(query, key, cu, max(lengths))
    torch._dynamo.reset()
    assert len(graphs) <= 3  # exact, then symbolic in lengths, and in numbers of documents
    calls = [node for node in graphs[-1].graph.nodes if "_varlen_attn" in str(node.target)]
    assert len(calls) == 1
    arguments = calls[0].args
    assert not isinstance(arguments[5], int)  # the longest document is symbolic
    assert arguments[8] == 0.3
    assert [list(one) for one in arguments if isinstance(one, list | tuple)] == [[4, 0]]
