"""The checks of every step and of the first batch."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch
from packtrain.schemas.errors import LeakError
from packtrain.training import PackedLoader
from packtrain.training.attention import use_packed
from packtrain.training.batch import FixedShape, flatten
from packtrain.training.probe import StepGuard, compare_first_batch, probe

from tests.training.probe.architectures import build, row, with_ones


def packed(kind: str = "llama", **options: Any) -> Any:
    model = build(kind, **options)
    use_packed(model)
    return model


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "diffllama", "llama4_text"])  # DiffLlama attends twice a layer
def test_good_steps(kind: str) -> None:
    model = packed(kind)
    calls = probe(model, explain=False).calls
    for guard in (StepGuard(model, calls), StepGuard(model)):
        for batch in (flatten([row(5, 3)]), flatten([row(9)])):
            with guard.step(batch):
                model(**batch)
        assert guard.steps == 2


def test_checkpointing_counts_the_forward_pass_alone() -> None:
    model = packed()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    guard = StepGuard(model, 2)
    for _ in range(2):
        batch = flatten([row(5, 3)])
        with guard.step(batch):
            loss = model(**batch).loss
        loss.backward()
    assert guard.steps == 2


def test_a_malformed_batch_is_not_taken() -> None:
    model = packed()
    guard = StepGuard(model)
    ran = []
    with (
        pytest.raises(LeakError, match="step 1 is not taken: the batch has an attention_mask"),
        guard.step(with_ones([row(4)])),
    ):
        ran.append(1)
    assert not ran


def test_a_layer_that_goes_another_way() -> None:
    model = packed()
    guard = StepGuard(model, 2)
    batch = flatten([row(5, 3)])
    model.model.layers[1].self_attn.forward = lambda hidden_states, **kwargs: (hidden_states, None)
    with (
        pytest.raises(LeakError, match="packed_varlen ran 1 times in the forward pass, and should have run 2"),
        guard.step(batch),
    ):
        model(**batch)
    with pytest.raises(LeakError, match=r"ran 1 times.*should have run 2"), StepGuard(model).step(batch):
        model(**batch)


def test_attention_that_was_set_back_meanwhile() -> None:
    model = packed()
    guard = StepGuard(model)
    model.set_attn_implementation("sdpa")
    batch = flatten([row(5, 3)])
    with pytest.raises(LeakError, match="was packed_varlen when training began, and is sdpa now"), guard.step(batch):
        model(**batch)


def test_a_row_too_long_for_the_model() -> None:
    model = packed("llama4_text", floor_scale=8)
    guard = StepGuard(model)
    with pytest.raises(LeakError, match="9 tokens in a row, but queries are scaled by their place"):
        guard.step(flatten([row(5, 4)])).__enter__()
    with StepGuard(model).step(flatten([row(4, 3)])):
        model(**flatten([row(4, 3)]))


@pytest.mark.parametrize("make", [flatten, partial(flatten, shape=FixedShape(64, 6))])
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "gpt_oss"])
def test_the_first_batch(kind: str, make: Any) -> None:
    model = packed(kind)
    batch = make([row(17, 1, 23, 2), row(9)])
    found = compare_first_batch(model, batch).require()
    assert found.documents == 4  # of one token, nothing is trained
    assert found.relative < 1e-5
    assert found.packed == pytest.approx(float(model(**batch).loss), rel=1e-5)


def test_the_first_batch_of_a_loader(folder: Path) -> None:
    model = packed()
    batch = next(iter(PackedLoader(folder, rows_per_step=2)))
    for name in ("input_ids", "labels"):  # the tiny model's vocabulary is smaller than the tokenizer's
        batch[name].clamp_(max=model.config.vocab_size - 1)
    found = compare_first_batch(model, batch, most=3).require()
    assert found.documents == 3


def test_the_first_batch_tells_a_leak() -> None:
    model = build("gpt_oss", initializer_range=0.4)  # eager; weights so large that it says something at all
    with pytest.raises(LeakError, match=r"packed, but .* one by one, a difference of .*, where 1% is allowed"):
        compare_first_batch(model, flatten([row(17, 23, 9)])).require()


def test_a_loss_that_is_not_a_number() -> None:
    model = packed()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(LeakError):
        compare_first_batch(model, flatten([row(5, 4)])).require()
