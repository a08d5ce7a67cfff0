"""`packtrain probe`: its exit code is the answer, and what it says of weights, lengths and kernels."""

import json
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING

from tests import kit
from tests.training.probe.architectures import build


def saved(tmp_path: Path, kind: str, weights: bool = False) -> str:
    model = build(kind)
    (model if weights else model.config).save_pretrained(tmp_path / kind)
    return str(tmp_path / kind)


def probed(*words: object) -> tuple[int, str]:
    done = kit.cli("probe", *words)
    return done.code, " ".join((done.out + done.err).split())


def test_documents_as_long_as_the_data_has_them(tmp_path: Path, folder: Path) -> None:
    code, said = probed(saved(tmp_path, "llama", weights=True))
    assert (code, "its own weights, float32 on cpu" in said, "FAILED" in said) == (0, True, False)
    model = saved(tmp_path, "llama")
    code, said = probed(model, "--data", folder)
    assert (code, "up to 150 tokens in a row of 256" in said) == (0, True)
    config = json.loads((Path(model) / "config.json").read_text())

    def stretched(**more: Any) -> None:
        rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
        (Path(model) / "config.json").write_text(json.dumps({**config, "rope_parameters": rope, **more}))

    stretched()
    assert probed(model, "--data", folder, "--tiny")[0] == 0
    stretched(max_position_embeddings=32)
    assert probed(model)[0] == 0
    code, said = probed(model, "--data", folder)
    assert (code, "Pack with truncate.max_length: 32" in said) == (2, True)


def test_a_leak_and_its_fix(tmp_path: Path) -> None:
    folder = saved(tmp_path, "gpt_oss")
    code, said = probed(folder, "--attention", "eager")
    assert (code, "set attention: auto" in said) == (1, True)
    code, said = probed(folder, "--dtype", "bfloat16")
    assert (code, "a loop over documents" in said) == (0, True)
    assert all(f" {check} " in said for check in ("isolation", "control", "equivalence", "calls"))


def test_a_model_that_cannot_be_packed(tmp_path: Path) -> None:
    code, said = probed(saved(tmp_path, "falcon"))
    assert (code, said.startswith("NOT isolated")) == (1, True)


def test_a_model_of_any_size_when_tiny(tmp_path: Path) -> None:
    config = CONFIG_MAPPING["llama"](hidden_size=16384, num_hidden_layers=126, num_attention_heads=128,
                                     num_key_value_heads=8, intermediate_size=53248, vocab_size=128256)  # fmt: skip
    config.save_pretrained(tmp_path / "405b")
    code, said = probed(tmp_path / "405b")
    assert (code, "--tiny" in said) == (2, True)
    assert probed(tmp_path / "405b" / "config.json", "--tiny")[0] == 0
