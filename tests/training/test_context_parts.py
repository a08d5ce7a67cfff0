"""Parts of a batch for devices that share a sequence: which tokens, which labels, which weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import AttentionError, ConfigError
from packtrain.schemas.layout import ParallelLayout
from packtrain.training import PackedLoader, cp_part
from packtrain.training.attention.packed_attention import use_packed
from torch.nn.functional import cross_entropy

from tests.training.conftest import MakePacked
from tests.training.trainer.tiny_models import make

LAYOUTS: tuple[ParallelLayout, ...] = ("thd", "ring", "ulysses")
TWO = {"cp": 2, "layout": "thd"}
OPTIONS: dict[str, Any] = {"rank": 0, "world_size": 1, "prefetch": 0}


def places(bounds: torch.Tensor, rank: int, size: int, layout: str) -> torch.Tensor:
    """Which tokens of a sequence a device holds."""
    whole = {"input_ids": torch.arange(int(bounds[-1]))[None], "cu_seq_lens_q": bounds}
    found: torch.Tensor = cp_part(whole, rank, size, layout)["input_ids"][0]
    return found


def held(bounds: Sequence[int], size: int, layout: ParallelLayout) -> list[list[int]]:
    """Which tokens each device holds."""
    return [places(torch.tensor(bounds, dtype=torch.int32), rank, size, layout).tolist() for rank in range(size)]


@pytest.mark.parametrize(
    ("bounds", "rank", "layout", "message"),
    [
        ([0, 8, 14], 0, "thd", r"a document of 6 tokens cannot be divided into 4 chunks; .*cp: 2, layout: thd"),
        ([0, 13], 0, "ring", "a sequence of 13 tokens cannot be divided into 2"),
        ([0, 8], 2, "ring", "rank 2 of 2 devices"),
        ([0, 8], 0, "rings", "layout='rings': choose one of thd, ring, ulysses"),
    ],
)
def test_what_cannot_be_divided_is_refused(bounds: list[int], rank: int, layout: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        places(torch.tensor(bounds), rank, 2, layout)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 5), st.sampled_from(LAYOUTS))
def test_every_token_is_on_one_device(chunks: list[int], size: int, layout: ParallelLayout) -> None:
    bounds = [0, *np.cumsum(np.array(chunks) * 2 * size).tolist()]
    parts = held(bounds, size, layout)
    assert sorted(token for part in parts for token in part) == list(range(bounds[-1]))
    assert all(part == sorted(part) for part in parts)
    assert len({len(part) for part in parts}) == 1
    # causal work: pairs of a token and what it sees in its document are about the same for every device
    if layout == "thd":
        begins = np.repeat(bounds[:-1], np.diff(bounds))
        work = [sum(int(token - begins[token]) + 1 for token in part) for part in parts]
        assert len(set(work)) == 1


@pytest.mark.parametrize(("layout", "static"), [("thd", False), ("thd", True), ("ring", False)])
def test_parts_with_gathered_keys_compute_the_whole_batch(
    make_packed: MakePacked, layout: ParallelLayout, static: bool
) -> None:
    """Attention over the keys of all parts; everything else of a model takes each token by itself."""
    folder = make_packed("context", 120, parallel=TWO)
    whole = next(iter(PackedLoader(folder, rows_per_step=2, static_shapes=static, **OPTIONS)))
    unpadded, padded = whole["cu_seq_lens_unpadded"].diff(), whole["cu_seq_lens_q"].diff()
    whole["number"] = torch.repeat_interleave(torch.arange(len(padded)), padded)[None]  # what is added is divided, too
    assert bool((unpadded <= padded).all())
    assert bool((padded % 4 == 0).all())
    assert bool((unpadded < padded).any())
    model = make("Llama", attention="sdpa", dtype=torch.float64, vocab_size=int(whole["input_ids"].max()) + 1)
    trained = int((whole["labels"] != -100).sum())

    def gradients(loss: Any) -> list[Any]:
        model.zero_grad()
        loss.backward()
        return [weight.grad.clone() for weight in model.parameters()]

    parts = [cp_part(whole, rank, 2, layout) for rank in range(2)]
    gathered = {name: torch.cat([part[name] for part in parts], 1) for name in ("input_ids", "position_ids", "number")}
    document, place = gathered["number"][0], gathered["position_ids"][0]
    seen = (document[:, None] == document) & (place[:, None] >= place)
    inputs = {"position_ids": gathered["position_ids"], "attention_mask": seen[None, None], "use_cache": False}
    logits = model(gathered["input_ids"], **inputs).logits
    halves = zip(logits[0].chunk(2), parts, strict=True)
    losses = [cross_entropy(half, part["shift_labels"][0], reduction="sum") / trained for half, part in halves]
    found = gradients(sum(losses))

    use_packed(model)
    expected = model(**{name: value for name, value in whole.items() if name not in ("labels", "number")}).logits
    loss = cross_entropy(expected[0, :-1], whole["labels"][0, 1:], reduction="sum") / trained
    index = torch.cat([places(whole["cu_seq_lens_q"], rank, 2, layout) for rank in range(2)])
    torch.testing.assert_close(logits, expected[:, index], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(sum(losses), loss, rtol=1e-9, atol=0)
    torch.testing.assert_close(found, gradients(loss), rtol=1e-9, atol=1e-9)
    assert all(one.item() > 0 for one in losses)
    for name in ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seq_lens_unpadded"):
        assert all(torch.equal(part[name], whole[name]) for part in parts)


def test_weights_are_divided_and_shifted_as_labels(weighted: Path) -> None:
    batch = next(iter(PackedLoader(weighted, rows_per_step=2, static_shapes=True, **OPTIONS)))
    parts = [cp_part(batch, rank, 2, "ring") for rank in range(2)]
    joined = {name: torch.cat([part[name] for part in parts], 1)[0] for name in ("loss_weights", "shift_loss_weights")}
    assert torch.equal(joined["loss_weights"], batch["loss_weights"][0])
    assert torch.equal(joined["shift_loss_weights"][:-1], batch["loss_weights"][0, 1:])
    assert joined["shift_loss_weights"][-1] == 0
    assert float(batch["loss_weights"].sum()) > 0


def test_attention_that_exchanges_nothing_refuses_a_part(make_packed: MakePacked) -> None:
    folder = make_packed("context", 120, parallel=TWO)
    part = cp_part(next(iter(PackedLoader(folder, rows_per_step=2, **OPTIONS))), 0, 2, "thd")
    model = make("Llama", vocab_size=int(part["input_ids"].max()) + 1)
    use_packed(model)
    with pytest.raises(AttentionError, match=r"context parallelism\) needs attention that exchanges keys"):
        model(**part)
