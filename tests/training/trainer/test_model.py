"""The model to train: loaded or drawn, refused by name, its limits; adapters are the only weights that move."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from packtrain.schemas.errors import ConfigError
from packtrain.training.models.limits import longest_document
from packtrain.training.models.model import add_adapters, load_model
from packtrain.training.models.model_config import ModelConfig
from packtrain.training.models.tokenizer import find_tokenizer
from packtrain.training.packed_rows import PackedRows

from tests import kit
from tests.training.trainer.tiny_models import make

LLAMA = {"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 4}  # fmt: skip


def load(keys: dict[str, Any], seed: int = 0) -> Any:
    return load_model(ModelConfig.model_validate(keys), Path.cwd(), seed)


def test_models_are_drawn_by_the_seed_and_refused_by_name(tmp_path: Path) -> None:
    drawn = {"config": LLAMA}
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    one, same, other = (load(drawn, seed) for seed in (1, 1, 2))
    weight = [next(model.parameters()) for model in (one, same, other)]
    assert torch.equal(weight[0], weight[1])
    assert not torch.equal(weight[0], weight[2])
    assert torch.equal(torch.random.get_rng_state(), before)
    one.save_pretrained(tmp_path / "kept")
    kept = load({"path": str(tmp_path / "kept")})
    assert torch.equal(next(kept.parameters()), weight[0])
    with pytest.raises(ConfigError, match="not a multiple of the number of attention heads"):
        load({"config": {**LLAMA, "num_attention_heads": 3}})


def test_weights_that_are_damaged_or_missing_are_no_model(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    kept = {"path": str(tmp_path / "kept")}
    load({"config": LLAMA}).save_pretrained(tmp_path / "kept")
    file = tmp_path / "kept" / "model.safetensors"
    whole = file.read_bytes()
    weights = {name: one.clone() for name, one in load_file(file).items()}  # no longer mapped from the file
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"transformers cannot load .*kept as a causal language model: .*header"):
        load(kept)
    file.unlink()
    with pytest.raises(ConfigError, match=r"cannot load .*kept .*: .*no file named model.safetensors"):
        load(kept)
    save_file({name: one for name, one in weights.items() if ".mlp." not in name}, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"kept lacks 3 of the model's weights, such as model.layers.0.mlp.down_proj"):
        load(kept)


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="bitsandbytes is here")
def test_quantisation_without_its_package_is_refused(tmp_path: Path) -> None:
    load({"config": LLAMA}).save_pretrained(tmp_path)
    four_bits = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    with pytest.raises(ConfigError, match=r"transformers cannot load .*bitsandbytes"):
        load({"path": str(tmp_path), "quantization": four_bits})


def test_the_longest_document_is_what_its_configuration_says() -> None:
    gpt2 = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 48}
    opt = {"model_type": "opt", "vocab_size": 64, "hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1,
           "num_attention_heads": 2, "word_embed_proj_dim": 16, "max_position_embeddings": 40}  # fmt: skip
    models = [load({"config": one}) for one in (gpt2, opt, LLAMA)]
    limits = [longest_document(model) for model in models]
    assert [one and one.tokens for one in limits] == [48, 40, 2048]


def test_the_template_of_the_run_goes_with_any_folder_of_the_tokenizer(tmp_path: Path) -> None:
    own = (kit.demo_tokenizer() / "chat_template.jinja").read_text()
    template = tmp_path / "template.jinja"
    template.write_text(own + "{# mine #}")
    folder = kit.packed(kit.configure(tmp_path, "chats", tokenizer={"chat_template": template.name})).folder
    template.unlink()
    for given in (None, kit.demo_tokenizer()):
        assert find_tokenizer(given, PackedRows(folder)).chat_template == own + "{# mine #}"
    noted = folder / "_run" / "run.json"
    noted.write_text(json.dumps(json.loads(noted.read_text()) | {"chat_template": "\ud800"}))  # by a stranger
    assert find_tokenizer(None, PackedRows(folder)).chat_template == own


def test_only_adapters_learn() -> None:
    pytest.importorskip("peft")
    model, same, other = (add_adapters(make("Llama"), {"r": 4}, seed) for seed in (3, 3, 4))
    drawn = [
        next(weight for name, weight in one.named_parameters() if "lora_A" in name) for one in (model, same, other)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert names
    assert all("lora_" in name for name in names)
    assert {name.split(".")[-4] for name in names} >= {"q_proj", "down_proj"}
    assert not any("lm_head" in name for name in names)
    assert model.peft_config["default"].lora_alpha == 8
    with pytest.raises(ConfigError, match=r"lora: peft refuses it .*'alpha'"):
        add_adapters(make("Llama"), {"alpha": 4}, 0)
    with pytest.raises(ConfigError, match=r"peft refuses it for LlamaForCausalLM: .*no_such_layer"):
        add_adapters(make("Llama"), {"target_modules": ["no_such_layer"]}, 0)
