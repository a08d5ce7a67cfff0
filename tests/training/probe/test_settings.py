"""Settings that leak are caught, each by its name, and the isolated ones pass, without false alarms."""

from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch
from packtrain.schemas.errors import ConfigError, LeakError
from packtrain.training.attention import use_packed
from packtrain.training.batch import FixedShape, flatten
from packtrain.training.probe import probe

from tests.training.probe.architectures import build, with_default_cache, with_ones

KINDS = ("llama", "qwen3_moe", "gemma2")


def dropped(rows: Any, *names: str) -> dict[str, Any]:
    return {name: value for name, value in flatten(rows).items() if name not in names}


def counted_on(rows: Any) -> dict[str, Any]:
    """Positions run on from document to document, and no bounds come: what plain collators make."""
    batch = dropped(rows, "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    return {**batch, "position_ids": torch.arange(batch["input_ids"].shape[1])[None]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("make", "fault", "fix"),
    [
        (with_default_cache, "use_cache=None", "use_cache=False"),
        (lambda rows: {**flatten(rows), "use_cache": True}, "use_cache=True", "use_cache=False"),
        (with_ones, "attention_mask in the batch", "leave attention_mask out"),
        (counted_on, "position_ids do not restart", "PackedLoader"),
    ],
    ids=["default cache", "cache", "mask of ones", "positions count on"],
)
def test_what_leaks_with_a_models_own_attention(kind: str, make: Any, fault: str, fix: str) -> None:
    model = build(kind)
    report = probe(model, make=make)
    isolation = report.check("isolation")
    assert isolation is not None
    assert not isolation.passed
    assert float(isolation.value) > 1e-3
    assert fault in str(report.fault)
    assert fix in str(report.fix)
    with pytest.raises(LeakError, match=r"isolation is .*should be 0, to the bit.*At fault: "):
        report.require()
    assert probe(model).require().isolated  # the same model, as the loader feeds it


def test_eager_attention_of_gpt_oss() -> None:
    model = build("gpt_oss")
    report = probe(model)
    assert not report.isolated
    assert report.fault == "attention: eager. GptOssForCausalLM does not keep documents apart with it"
    assert report.fix == "set attention: auto (which is packed_block_mask)"
    assert model.config._attn_implementation == "eager"  # the diagnosis leaves it as it was
    use_packed(model)
    assert probe(model).isolated


def test_recurrent_layers() -> None:
    report = probe(build("mamba2"))
    failed = {check.name for check in report.checks if not check.passed}
    assert {"layers", "isolation", "equivalence"} <= failed
    assert "Mamba2Mixer" in str(report.fault)
    assert "mamba-ssm" in str(report.fix)
    report = probe(build("lfm2", layer_types=["conv", "full_attention", "conv"], num_hidden_layers=3))
    assert "isolation" in {check.name for check in report.checks if not check.passed}
    assert "ShortConv" in str(report.fault)


def test_positions_that_run_on_within_the_model() -> None:
    model = build("bart")
    use_packed(model)
    report = probe(model)
    assert [check.name for check in report.checks if not check.passed] == ["equivalence"]
    assert str(report.fault).startswith("positions: BartForCausalLM counts along the whole row")


def test_attention_dropout_is_found_before_training_fails_on_it() -> None:
    model = build("gpt2")  # 0.1 by default
    use_packed(model)
    report = probe(model)
    assert [check.name for check in report.checks if not check.passed] == ["dropout"]
    assert "dropout to 0" in str(report.fix)
    with pytest.raises(LeakError, match=r"^GPT2LMHeadModel uses attention dropout, which attention packed_varlen does"):
        report.require()


def test_attention_of_the_models_own_may_drop_weights() -> None:
    report = probe(build("gpt2"))  # eager or sdpa, with dropout
    dropout = report.check("dropout")
    assert dropout is not None
    assert dropout.passed
    assert "attn" in dropout.value
    assert "variable-length" not in dropout.detail
    assert report.isolated


def test_the_control_sees_a_model_that_ignores_its_input() -> None:
    model = build("llama")
    torch.nn.init.zeros_(model.get_input_embeddings().weight)
    torch.nn.init.zeros_(model.lm_head.weight)
    report = probe(model, explain=False)
    assert "control" in {check.name for check in report.checks if not check.passed}


@pytest.mark.parametrize("make", [partial(flatten, shape=FixedShape(64, 5)), partial(flatten, seq_idx=True)])
def test_every_form_of_the_loaders_batches(make: Any) -> None:
    model = build("llama")
    use_packed(model)
    assert probe(model, make=make).require().isolated


def test_outputs_that_are_no_numbers_are_no_leak() -> None:
    model = build("llama")
    use_packed(model)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    report = probe(model)
    assert not report.isolated
    assert report.fault == "the model's outputs, which are not numbers"
    assert report.verdict.startswith("not shown: the model's outputs are not numbers")
    with pytest.raises(LeakError, match=r"^LlamaForCausalLM computes outputs that are not numbers"):
        report.require()


def test_the_influence_of_each_document_on_each() -> None:
    model = build("llama")
    use_packed(model)
    matrix = probe(model, documents=(5, 2, 30, 9)).influence
    assert len(matrix) == 4
    for loss, line in enumerate(matrix):
        assert [value > 0 for value in line] == [document == loss for document in range(4)]


def test_a_row_too_long_for_llama_4() -> None:
    model = build("llama4_text")
    use_packed(model)
    assert probe(model).isolated
    assert probe(model, tokens=8191).isolated
    report = probe(model, tokens=8192)
    assert [check.name for check in report.checks if not check.passed] == ["length"]
    assert report.fix == "take fewer rows a step, or a shorter max_length"


def test_what_cannot_be_probed() -> None:
    with pytest.raises(ConfigError, match="at least two"):
        probe(build("llama"), documents=(17,))
    with pytest.raises(ConfigError, match="no config"):
        probe(torch.nn.Linear(2, 2))


def test_the_report_as_a_table_and_as_data() -> None:
    report = probe(build("gpt_oss"))
    rows = {name: (passed, value) for name, passed, value, _, _ in report.rows()}
    assert rows["isolation"][0] == "FAILED"
    assert rows["control"][0] == "ok"
    data = report.to_json()
    assert data["isolated"] is False
    assert data["model"] == "GptOssForCausalLM"
    assert len(data["influence"]) == 3
