"""Shapes of models: parameters as transformers itself counts them, of models made from tiny configurations."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.report.collect.model_shapes import shape_of_model, shape_of_numbers, with_tokenizers_model
from packtrain.pipeline.report.options import ReportOptions
from packtrain.schemas.errors import ConfigError

TINY: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "llama tied": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 24, "tie_word_embeddings": False},
    "mistral": {"head_dim": 16, "tie_word_embeddings": False},
    "gemma3_text": {"head_dim": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False},
    "qwen3_moe": {**EXPERTS, "head_dim": 16, "tie_word_embeddings": False},
    "qwen3_moe, some dense": {**EXPERTS, "head_dim": 16, "mlp_only_layers": [1], "tie_word_embeddings": True},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128},
}


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any], float]:
    """A model with random weights, its configuration, and the parameters that a token meets."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    kind = request.param.split(",")[0].split()[0]
    own = MODELS[request.param]
    base = {"vocab_size": 320} if kind == "gpt2" else TINY
    config = transformers.AutoConfig.for_model(kind, **{**base, **own})
    model = transformers.AutoModelForCausalLM.from_config(config)
    every, chosen = own.get("num_experts") or own.get("num_local_experts") or 1, own.get("num_experts_per_tok", 1)
    met = 0.0
    for name, values in model.named_parameters():
        met += values.numel() * (chosen / every if ".experts." in name else 1)
    return model, json.loads(config.to_json_string(use_diff=False)), met


@pytest.mark.slow
def test_parameters_are_counted_from_the_configuration(made: Any, tmp_path: Path) -> None:
    _, config, met = made
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    for place in (path, tmp_path):
        shape = shape_of_model(place)
        assert shape.parameters == pytest.approx(met, abs=0.5)
        assert (shape.layers, shape.hidden) == (3, 64)
        assert tmp_path.name in shape.name


@pytest.mark.slow
def test_parameters_are_counted_in_the_files(made: Any, tmp_path: Path) -> None:
    model, config, met = made
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    path = tmp_path / "config.json"
    # What the configuration would say is not asked.
    path.write_text(json.dumps({**config, "vocab_size": 1, "intermediate_size": 1}))
    assert shape_of_model(tmp_path).parameters == pytest.approx(met, abs=0.5)


def test_what_has_text_among_other_things(tmp_path: Path) -> None:
    inner = {**TINY, "model_type": "llama", "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "seer", "text_config": inner, "vision_config": {}}))
    (tmp_path / "alone.json").write_text(json.dumps(inner))
    assert shape_of_model(tmp_path).parameters == shape_of_model(tmp_path / "alone.json").parameters
    assert shape_of_model(tmp_path / "alone.json").name.startswith("alone, ")


def test_known_models(tmp_path: Path) -> None:
    llama = {"model_type": "llama", "vocab_size": 32_000, "hidden_size": 4096, "num_hidden_layers": 32,
             "num_attention_heads": 32, "intermediate_size": 11_008, "tie_word_embeddings": False}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(llama))
    assert shape_of_model(tmp_path).parameters == 6_738_415_616  # as its model card has it


def test_numbers() -> None:
    shape = shape_of_numbers(1.2e9, 16, 2048)
    assert (shape.name, shape.parameters, shape.layers, shape.hidden) == ("1.2 G parameters", 1.2e9, 16, 2048)
    for wrong in ((0, 1, 1), (float("nan"), 1, 1), (float("inf"), 1, 1), (1, 0, 1), (1, 1, -5)):
        with pytest.raises(ConfigError):
            shape_of_numbers(*wrong)
    for large in ((1e300, 1, 1), (1, 10**400, 1), (1, 1, 10**19)):
        with pytest.raises(ConfigError):
            shape_of_numbers(*large)


def test_damaged_weights_are_not_believed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "model_type": "llama", "tie_word_embeddings": False}))
    alone = shape_of_model(tmp_path).parameters
    for data in (b"", b"\xff" * 40, b'\x05\0\0\0\0\0\0\0{"a":', b'\x0a\0\0\0\0\0\0\0{"a":null}'):
        (tmp_path / "model.safetensors").write_bytes(data)
        assert shape_of_model(tmp_path).parameters == alone


@pytest.mark.parametrize("every", ["x", [1], -3, float("inf")])
def test_experts_that_are_no_number_are_none(every: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    dense = shape_of_model(tmp_path).parameters
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "num_experts": every, "num_experts_per_tok": "x"}))
    assert shape_of_model(tmp_path).parameters == dense


@pytest.mark.parametrize(
    "header", ["[1]", "[" * 100_000, '{"a":{"dtype":"F32","shape":[-5]}}', '{"a":{"dtype":"F32","shape":[1e400]}}']
)
def test_headers_that_no_file_has_are_not_believed(header: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    alone = shape_of_model(tmp_path).parameters
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    assert shape_of_model(tmp_path).parameters == alone


# --- how long a document may be ---

LONGROPE = {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 128),
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": None, "n_positions": 64}, 64),
        ({"text_config": {**TINY, "max_position_embeddings": 96}}, 96),
        ({"rope_scaling": LONGROPE, "original_max_position_embeddings": 32}, 32),
        ({"rope_parameters": {**LONGROPE, "original_max_position_embeddings": 32}}, 32),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 128),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}, 128),
        # What no model has is not believed.
        ({"max_position_embeddings": "128"}, None),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": -128}, None),
        ({"max_position_embeddings": 10**30}, None),
        ({"rope_scaling": [1]}, 128),
        ({"rope_scaling": {**LONGROPE, "original_max_position_embeddings": "x"}}, 128),
        ({"rope_scaling": {**LONGROPE, "original_max_position_embeddings": -5}}, 128),
        ({"rope_scaling": {**LONGROPE, "original_max_position_embeddings": float("inf")}}, 128),
    ],
)
def test_how_long_a_document_may_be(changes: dict[str, Any], tokens: int | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **changes}))
    limit = shape_of_model(tmp_path).limit
    assert (limit.tokens if limit else None) == tokens


# --- the model in the tokenizer's folder ---


def test_the_model_in_the_tokenizers_folder_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**TINY, "model_type": "llama", "tie_word_embeddings": False}))
    shape = with_tokenizers_model(ReportOptions(), "my-model", tmp_path).shape
    assert "my-model/config.json" in shape.name
    assert (shape.layers, shape.hidden) == (3, 64)
    assert shape.limit is not None
    assert shape.limit.tokens == 128
    mine = ReportOptions(shape=shape_of_numbers(1e9, 16, 2048))
    assert with_tokenizers_model(mine, "my-model", tmp_path) == mine


@pytest.mark.parametrize(
    "content", [None, "{", "[1]", '{"model_type": "llama"}', "[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}"]
)
def test_what_cannot_be_used_changes_nothing(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    for place in (str(tmp_path), "missing", "https://example.com/model", "../.."):
        assert with_tokenizers_model(ReportOptions(), place, tmp_path) == ReportOptions()
