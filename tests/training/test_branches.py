"""Rows whose documents share tokens: loss and gradients are those of the documents alone, or the model is refused."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from packtrain.schemas.errors import AttentionError, ConfigError, IntegrityError, LeakError
from packtrain.training.attention import varlen
from packtrain.training.attention.isolation_probe import probe
from packtrain.training.attention.kernels import HALF, KeyBounds, flash, gather_paths, per_document
from packtrain.training.attention.packed_attention import use_packed
from packtrain.training.attention.varlen import packed_varlen
from packtrain.training.batch import collate, flatten, unpack
from packtrain.training.branches import expanded, path_arguments, paths_of

from tests.support.branch_rows import Document, branch_row, mixed_groups, plain_row
from tests.support.varlen_kernel import flash_on_cpu
from tests.training.probe.architectures import build

__all__ = ["flash_on_cpu"]  # a fixture
torch.set_num_threads(1)

EXACT = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gpt_oss", "phi3", "deepseek_v3"),
    *("olmo2", "glm4", "granite", "gpt2", "mixtral"),
)
"""Windows, soft caps, sinks, multi-head latent attention and mixtures of experts are among them."""
REFUSED = ("stablelm", "nemotron")
"""Models that drop the arguments of a batch on the way to their layers."""


def train(model: Any, batch: dict[str, Any]) -> tuple[float, torch.Tensor]:
    """The summed loss of a batch, and the gradient of all weights."""
    model.zero_grad()
    labels = batch["labels"]
    logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
    )
    loss.backward()
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return float(loss.detach()), torch.cat(gradients).clone()


def off(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The difference, over the size of what is expected."""
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("kind", EXACT)
def test_loss_and_gradients_are_those_of_the_documents_alone(kind: str) -> None:
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0} if kind == "gpt2" else {}
    model = build(kind, **dropout).train()
    for name, weight in model.named_parameters():
        if weight.ndim > 1:  # larger than models begin with, so that a wrong key changes something
            torch.nn.init.normal_(weight, std=0.08, generator=torch.Generator().manual_seed(len(name)))
    use_packed(model, "packed_varlen")
    row, documents = branch_row(mixed_groups())
    assert len(row.input_ids) < 0.6 * sum(len(document.tokens) for document in documents)
    loss, gradient = train(model, flatten([row]))
    expected_loss = 0.0
    expected = torch.zeros_like(gradient)
    for document in documents:
        part, part_gradient = train(model, flatten([plain_row([document])]))
        expected_loss += part
        expected += part_gradient
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert off(gradient, expected) < 1e-5


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_drop_arguments_are_refused(kind: str) -> None:
    model = build(kind)
    use_packed(model, "packed_varlen")
    row, documents = branch_row(mixed_groups())
    with pytest.raises(AttentionError, match="got no `paths`"):
        model(**flatten([row]))
    model(**flatten([plain_row(documents)]))  # without branches they train


# Paths


def test_paths_give_every_document_back() -> None:
    rows, documents = zip(*(branch_row(mixed_groups(seed)) for seed in range(3)), strict=True)
    for row, mine in zip(rows, documents, strict=True):
        assert [row.input_ids[path].tolist() for path in paths_of(row)] == [document.tokens for document in mine]
        whole, plain = expanded(row), plain_row(mine)
        for name in ("input_ids", "labels", "position_ids", "seq_lengths"):
            np.testing.assert_array_equal(getattr(whole, name), getattr(plain, name))
    batch = flatten(rows)
    tokens = batch["input_ids"][0]
    limits = batch["cu_paths"].tolist()
    every = [document.tokens for mine in documents for document in mine]
    assert [tokens[batch["paths"][a:b]].tolist() for a, b in pairwise(limits)] == every
    assert batch["max_path"] == max(map(len, every))
    assert not {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"} & batch.keys()


def test_unpacked_rows_hold_whole_documents() -> None:
    row, documents = branch_row(mixed_groups())
    batch = unpack([row], 0)
    expected = unpack([plain_row(documents)], 0)
    for name in ("input_ids", "labels", "position_ids", "attention_mask"):
        assert torch.equal(batch[name], expected[name])


@pytest.mark.parametrize("change", [{"parents": [0, 2]}, {"position_ids": [0, 1, 2, 9, 10]}, {"parents": [0, -1]}])
def test_parents_that_are_not_there_are_refused(change: dict[str, list[int]]) -> None:
    row, _ = branch_row([[Document([7, 8, 9], [-100] * 3), Document([7, 8, 10], [-100] * 3)]])
    assert row.parents is not None
    assert row.parents.tolist() == [0, 1]
    for name, values in change.items():
        setattr(row, name, np.array(values, np.int32))
    with pytest.raises(IntegrityError, match="packtrain verify"):
        path_arguments([row])


# Kernels


def bounds(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=torch.int32)


@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.parametrize("dtype", HALF)
def test_flash_equals_the_loop_where_keys_come_before_queries(dtype: torch.dtype, window: int | None) -> None:
    queries, keys = [3, 8, 2, 11], [3, 20, 9, 11]
    torch.manual_seed(0)
    halves = [torch.randn(sum(lengths), heads, 16).to(dtype) for lengths, heads in ((queries, 4), (keys, 2), (keys, 2))]
    for tensor in halves:
        tensor.requires_grad_()
    exact = [tensor.detach().float().requires_grad_() for tensor in halves]
    key_bounds = KeyBounds(bounds(keys), max(keys))
    options: dict[str, Any] = {"scale": 0.25, "window": window, "key_bounds": key_bounds}
    query, key, value = halves
    out = flash(query, key, value, bounds(queries), max(queries), **options)
    expected = per_document(exact[0], exact[1], exact[2], bounds(queries), **options)
    out.float().pow(2).sum().backward()
    expected.pow(2).sum().backward()
    limit = 1e-2 if dtype == torch.bfloat16 else 2e-3
    assert off(out, expected) < limit
    for tensor, reference in zip(halves, exact, strict=True):
        if float(reference.grad.norm()) > 1e-3:
            assert off(tensor.grad, reference.grad) < 2 * limit


def test_the_loop_sees_what_a_dense_mask_shows() -> None:
    """With windows, soft caps and sinks, query i of a piece sees the keys of its path up to its own position."""
    chance = random.Random(1)
    for window, softcap, sunk in ((None, None, False), (4, None, False), (None, 0.7, False), (3, 0.7, True)):
        torch.manual_seed(chance.randrange(1000))
        query, key, value = torch.randn(5, 2, 8), torch.randn(12, 2, 8), torch.randn(12, 2, 8)
        sinks = torch.tensor([0.5, -1.0]) if sunk else None
        key_bounds = KeyBounds(bounds([12]), 12)
        out = per_document(
            query,
            key,
            value,
            bounds([5]),
            scale=0.3,
            window=window,
            softcap=softcap,
            sinks=sinks,
            key_bounds=key_bounds,
        )
        for place in range(5):
            for head in range(2):
                last = 7 + place
                first = 0 if window is None else max(0, last - window + 1)
                scores = key[first : last + 1, head] @ query[place, head] * 0.3
                scores = softcap * torch.tanh(scores / softcap) if softcap is not None else scores
                exps = scores.exp()
                total = exps.sum() + (sinks[head].exp() if sinks is not None else 0)
                expected = (exps[:, None] * value[first : last + 1, head]).sum(0) / total
                torch.testing.assert_close(out[place, head], expected, rtol=1e-5, atol=1e-5)


def test_gradients_along_paths_are_added_in_float32() -> None:
    tokens = torch.ones(1, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    gathered = gather_paths(tokens, torch.zeros(1000, dtype=torch.int64))
    gathered.sum().backward()
    assert tokens.grad is not None
    assert float(tokens.grad) == 1000  # bfloat16 alone stops at 256


def test_tokens_outside_of_a_path_have_no_gradient_to_the_bit() -> None:
    row, _ = branch_row(mixed_groups())
    batch = path_arguments([row])
    tokens = len(row.input_ids)
    layer = torch.nn.Module()
    bounds_of_pieces = batch["cu_pieces"].tolist()
    places = paths_of(row)
    for number in (0, 3, len(places) - 1):
        shape = (1, 2, tokens, 8)
        inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        query, key, value = inputs
        positions = torch.tensor(row.position_ids)[None]
        out, _ = packed_varlen(layer, query, key, value, None, position_ids=positions, **batch)
        out[:, bounds_of_pieces[number] : bounds_of_pieces[number + 1]].pow(2).sum().backward()
        inside = torch.zeros(tokens, dtype=torch.bool)
        inside[places[number]] = True
        for tensor in inputs:
            assert tensor.grad is not None
            assert not tensor.grad[:, :, ~inside].any()
        assert value.grad is not None
        assert value.grad[:, :, inside].flatten(0, 1).abs().amax((0, 2)).all()


# Proofs


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_the_probe_sees_paths_and_nothing_else(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = branch_row(mixed_groups())
    batch = flatten([row])
    model = build(kind)
    use_packed(model, "packed_varlen")
    report = probe(model, batch=batch).require()
    assert {check.name for check in report.checks} == {"isolation", "control", "equivalence", "at length"}

    def with_a_stranger(tokens: torch.Tensor, paths: torch.Tensor) -> torch.Tensor:
        changed = paths.clone()
        changed[-2] = 0 if int(paths[-2]) else 1  # the last piece sees a token that is not of its path
        return gather_paths(tokens, changed)

    monkeypatch.setattr(varlen, "gather_paths", with_a_stranger)
    failed = {check.name for check in probe(model, batch=batch).checks if not check.passed}
    assert "equivalence" in failed


@pytest.mark.parametrize("kind", ["mamba", "lfm2"])
def test_models_that_carry_a_state_are_refused(kind: str) -> None:
    row, _ = branch_row(mixed_groups())
    batch = flatten([row])
    model = build(kind)
    use_packed(model)
    with pytest.raises(LeakError):
        probe(model, batch=batch).require()


def test_collate_needs_the_proof_that_attention_follows_paths() -> None:
    row, _ = branch_row(mixed_groups())
    example = {
        "branch_input_ids": row.input_ids,
        "branch_labels": row.labels,
        "branch_position_ids": row.position_ids,
        "branch_lengths": row.seq_lengths,
        "branch_parents": row.parents,
    }
    with pytest.raises(ConfigError, match=r"attention=use_packed\(model\)"):
        collate([example])
    model = build("llama")
    with pytest.raises(ConfigError, match="attention: sdpa does not know them"):
        collate([example], attention=use_packed(model, "sdpa"))
    batch = collate([example], attention=use_packed(model))
    assert torch.equal(batch["paths"], flatten([row])["paths"])
