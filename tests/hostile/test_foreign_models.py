"""Models and adapters of other people: all parts are there, nothing outside is named, and no number is believed."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Config
from tests.support.hostile import patience

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from packtrain.schemas.errors import ConfigError, PacktrainError  # noqa: E402
from packtrain.training.models.generate import find_model, load_for_generation  # noqa: E402

from tests.support.small_models import write_model  # noqa: E402


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, which no test changes."""
    return write_model(tmp_path_factory.mktemp("plain") / "model")


@pytest.fixture
def adapter(plain: Path, tmp_path: Path) -> Path:
    """An adapter of it, with a rank of its own for some modules."""
    from transformers import AutoModelForCausalLM

    settings = peft.LoraConfig(
        r=4, target_modules=r".*\.(q|v)_proj", rank_pattern={r"layers\.1\..*v_proj": 2}, init_lora_weights=False
    )
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(plain), settings).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def load(folder: Path) -> Any:
    """As `packtrain sample` does."""
    with patience(120):
        return load_for_generation(find_model(folder), dtype="auto", device=torch.device("cpu"))


def change(path: Path, **keys: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_a_sound_adapter_is_taken(adapter: Path, plain: Path) -> None:
    assert any(
        not torch.equal(left, right)
        for left, right in zip(load(adapter).parameters(), load(plain).parameters(), strict=True)
    )


WEIGHTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "one is missing": (lambda weights: weights.pop(sorted(weights)[0]), "lacks 1 of its weights"),
    "all but one are missing": (
        lambda weights: [weights.pop(key) for key in sorted(weights)[1:]],
        r"lacks \d+ of its weights",
    ),
    "one has another name": (
        lambda weights: weights.update({"base_model.model.elsewhere.lora_A.weight": weights.pop(sorted(weights)[0])}),
        r"lacks 1 of its weights",
    ),
    "one too many": (
        lambda weights: weights.update({"base_model.model.elsewhere.lora_A.weight": torch.zeros(4, 4)}),
        "for which the model has no place",
    ),
    "one of another shape": (
        lambda weights: weights.update({sorted(weights)[0]: torch.zeros(3, 3)}),
        "peft cannot load the adapter",
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_an_adapter_has_all_its_weights(adapter: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    edit, what = WEIGHTS[name]
    edit(weights)
    save_file(weights, file)
    with pytest.raises(ConfigError, match=what):
        load(adapter)


SLOW = "(" * 6 + "[a-z._0-9]*" + ")*" * 6 + "!"
"""A pattern that takes ages on a name that does not match it."""
KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "other repositories": ({"peft_type": "XLORA", "adapters": {"0": "some/where"}}, "packtrain loads LORA alone"),
    "no type": ({"peft_type": None}, "packtrain loads LORA alone"),
    "a module to import": ({"megatron_config": {"a": 1}, "megatron_core": "os"}, "has the key megatron_config"),
    "a file of statistics": ({"corda_config": {"cache_file": "/etc/passwd"}}, "has the key corda_config"),
    "an endless decomposition": ({"init_lora_weights": "pissa_niter_1000000000"}, "has init_lora_weights"),
    "repeated layers": ({"layer_replication": [[0, 1_000_000_000]]}, "has the key layer_replication"),
    "a huge rank": ({"r": 10**9}, "has a rank"),
    "a huge rank somewhere": ({"rank_pattern": {"q_proj": 10**9}}, "has a rank"),
    "a slow pattern": ({"target_modules": SLOW}, "list the modules' names instead"),
    "a slow exception": ({"exclude_modules": SLOW}, "list the modules' names instead"),
    "a slow rank": ({"rank_pattern": {SLOW: 4}}, "list the modules' names instead"),
    "no pattern": ({"target_modules": "(("}, "one of its patterns cannot be used"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * one.startswith("a slow e")) for one in KEYS]
)
def test_an_adapter_wants_nothing_else(adapter: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from packtrain.training.models import adapter as adapters

    monkeypatch.setattr(adapters, "PATTERN_SECONDS", 1.0)
    keys, what = KEYS[name]
    change(adapter / "adapter_config.json", **keys)
    with pytest.raises(ConfigError, match=what):
        load(adapter)


COUNTS: tuple[dict[str, Any], ...] = (
    {"num_hidden_layers": 1_000_000},
    {"num_hidden_layers": 10**12},
    {"num_labels": 10**9},
    {"text_config": {"num_hidden_layers": 10**9}},
    {"num_local_experts": 10**8},
    {"num_attention_heads": 10**9},
    {"layer_types": ["full_attention"] * 100_000},
    {"hybrid_override_pattern": "M" * 100_000},
)


@pytest.mark.parametrize("keys", COUNTS, ids=lambda keys: f"{next(iter(keys))}")
def test_no_more_parts_are_built_than_models_have(tmp_path: Path, keys: dict[str, Any]) -> None:
    folder = write_model(tmp_path / "model")
    change(folder / "config.json", **keys)
    with pytest.raises(ConfigError, match="and no model has more than"):
        load(folder)


NAMES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["pipe", "device", "itself", "outside"])
def test_every_file_of_a_model_is_a_regular_one(tmp_path: Path, name: str, kind: str) -> None:
    folder = write_model(tmp_path / "model")
    path = folder / name
    if kind == "outside":
        path.replace(tmp_path / "outside")
    else:
        path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"device": Path("/dev/zero"), "itself": path, "outside": tmp_path / "outside"}[kind])
    with pytest.raises(PacktrainError) as told:
        load(folder)
    assert told.value.exit_code == 2
    assert str(path) in str(told.value) or "no config.json" in str(told.value)


def test_a_tokenizer_for_training_is_of_regular_files(foreign: Path, config: Config) -> None:
    from packtrain.training.models.tokenizer import find_tokenizer
    from packtrain.training.packed_rows import PackedRows

    folder = Path(config["out"]).parent / "tokenizer"
    write_model(folder)
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    with patience(120), pytest.raises(ConfigError, match="it is not a regular file"):
        find_tokenizer(folder, PackedRows(foreign))
