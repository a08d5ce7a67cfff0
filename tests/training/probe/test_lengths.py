"""Models that compute long documents or rows differently: found from the configuration, and by trying."""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch
from packtrain.schemas.errors import LeakError
from packtrain.training.attention import use_packed
from packtrain.training.batch import flatten
from packtrain.training.probe import StepGuard, probe
from packtrain.training.probe.limits import document_limit
from packtrain.training.probe.tiny import shrink
from packtrain.training.rows import ConcatRows, PackedRows
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.training.probe.architectures import row

HALF = 8
"""Half a tiny head's dimensions."""
STRETCHED: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": ("llama", {"rope_type": "dynamic", "factor": 2.0}),
    "longrope": (
        "phi3",
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * HALF,
            "long_factor": [3.0] * HALF,
            "original_max_position_embeddings": 32,
        },
    ),
    "PhiMoE": (
        "phimoe",
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * HALF,
            "long_factor": [3.0] * HALF,
            "original_max_position_embeddings": 32,
            "short_mscale": 1.0,
            "long_mscale": 1.3,
        },
    ),
}


def made(kind: str, **changes: Any) -> Any:
    """A tiny model with packed attention; `rope` is added to its rotary embeddings' parameters."""
    config = shrink(CONFIG_MAPPING[kind]())
    rope = changes.pop("rope", {})
    config.rope_parameters = {**(config.rope_parameters or {}), "rope_theta": 1e4, **rope}
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    use_packed(model)
    return model


def stretched(name: str) -> Any:
    """One whose rotary embeddings change beyond 32 tokens."""
    kind, rope = STRETCHED[name]
    lengths = {"original_max_position_embeddings": 32} if kind == "phi3" else {}
    return made(kind, rope=rope, max_position_embeddings=32 if name == "dynamic" else 512, **lengths)


@pytest.mark.parametrize("name", STRETCHED)
def test_rotary_embeddings_that_stretch(name: str) -> None:
    model = stretched(name)
    report = probe(model, tokens=256, longest=33)
    assert [check.name for check in report.checks if not check.passed] == ["stretch"]
    assert report.fix == "pack with a smaller truncate.max_length, or take another model"
    with pytest.raises(LeakError, match="stretch is 33 tokens a document, and should be at most 32"):
        report.require()
    report = probe(model, tokens=256, longest=32).require()
    assert report.shown == (32, 256)
    assert "longer than 32 tokens" in report.verdict


@pytest.mark.parametrize("name", STRETCHED)
def test_that_they_do_is_seen_without_knowing_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packtrain.training.probe.static.document_limit", lambda model: None)
    model = stretched(name)
    assert probe(model, documents=(17, 23, 9)).isolated
    report = probe(model, tokens=100, longest=40)
    assert [check.name for check in report.checks if not check.passed] == ["at length"]
    assert "computes long documents or rows differently" in str(report.fault)
    report = probe(model, documents=(40, 17, 9), explain=False)
    assert [check.name for check in report.checks if not check.passed] == ["equivalence"]


def test_code_of_which_nothing_is_known() -> None:
    model = made("llama")
    rotary, forward = model.model.rotary_emb, model.model.rotary_emb.forward

    def by_the_longest(x: Any, position_ids: Any) -> Any:
        cos, sin = forward(x, position_ids)
        return (cos, sin) if int(position_ids.max()) < 64 else (0.9 * cos, 0.9 * sin)

    rotary.forward = by_the_longest
    assert probe(model).isolated
    report = probe(model, tokens=300, longest=80)
    assert [check.name for check in report.checks if not check.passed] == ["at length"]
    with pytest.raises(LeakError, match="documents of up to 80 tokens in a row of 300"):
        report.require()


@pytest.mark.parametrize("kind", ["yarn", "linear"])
def test_scaling_that_does_not_depend_on_lengths(kind: str) -> None:
    model = made("llama", rope={"rope_type": kind, "factor": 2.0, "original_max_position_embeddings": 32})
    assert document_limit(model) is None
    report = probe(model, tokens=256, longest=200).require()
    assert report.shown == (200, 256)
    assert "Shown with documents of up to 200 tokens in a row of 256" in report.verdict


@pytest.mark.parametrize(
    ("kind", "changes"), [("doge", {"keep_window_size": 8}), ("deepseek_v32", {"index_topk": 8, "index_n_heads": 16})]
)
def test_sparse_attention_picks_within_a_document(kind: str, changes: dict[str, Any]) -> None:
    model = made(kind, **changes)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(".A") or "dt_proj" in name or "index" in name:
                weight.normal_()  # as they are at first, scores tie, and which of them is taken means nothing
    assert probe(model).isolated


def test_llama_4_in_rows_beyond_its_scale() -> None:
    report = probe(made("llama4_text", floor_scale=8), explain=False)
    assert [check.name for check in report.checks if not check.passed] == ["equivalence"]


def test_the_guard_of_every_step() -> None:
    guard = StepGuard(stretched("dynamic"))
    with pytest.raises(LeakError, match="a document of 33 tokens, but dynamic rotary embeddings change"):
        guard.step(flatten([row(5, 33)])).__enter__()
    guard.step(flatten([row(32, 32)])).__enter__()


def test_the_model_is_left_as_it_was() -> None:
    model = stretched("dynamic")
    rotary = model.model.rotary_emb
    before, held = rotary.inv_freq.clone(), rotary.max_seq_len_cached
    probe(model, documents=(60, 17, 9), explain=False)
    assert torch.equal(rotary.inv_freq, before)
    assert rotary.max_seq_len_cached == held


def test_the_longest_document_of_the_data(make_packed: Any) -> None:
    for folder in (make_packed("number", 170), make_packed("aligned", 90, align=8), make_packed("short", 40)):
        rows = PackedRows(folder)
        longest = max(int(rows.row(index).seq_lengths.max()) for index in range(len(rows)))
        fresh = PackedRows(folder)
        assert fresh.longest == ConcatRows([fresh]).longest() == longest
        assert longest <= fresh.longest_at_most <= rows.max_length
        assert ConcatRows([PackedRows(folder), fresh]).longest(beyond=10) == longest
