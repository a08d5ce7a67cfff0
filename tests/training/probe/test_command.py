"""`packtrain probe`: what it prints, and that its exit code is the answer."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
from packtrain.pipeline.cli.main import main
from transformers import CONFIG_MAPPING

from tests.training.probe.architectures import build


@pytest.fixture
def packtrain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["packtrain", *arguments])
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as leave:
            main()
        captured = capsys.readouterr()
        return int(leave.value.code or 0), captured.out, captured.err

    return run


def saved(tmp_path: Path, kind: str, weights: bool = False) -> str:
    model = build(kind)
    (model if weights else model.config).save_pretrained(tmp_path / kind)
    return str(tmp_path / kind)


def test_isolated(packtrain, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = packtrain("probe", saved(tmp_path, "llama", weights=True), "--device", "cpu")
    assert code == 0
    assert "its own weights, float32 on cpu" in out
    assert "isolated: packed documents do not see each other" in out
    assert "Shown with documents of up to 23 tokens in a row of 49" in " ".join(out.split())
    assert "FAILED" not in out


def test_documents_as_long_as_the_data_has_them(packtrain, tmp_path: Path, folder: Path) -> None:  # type: ignore[no-untyped-def]
    model = saved(tmp_path, "llama")
    code, out, _ = packtrain("probe", model, "--device", "cpu", "--data", str(folder))
    assert code == 0
    assert "Shown with documents of up to 150 tokens in a row of 256" in " ".join(out.split())
    config = json.loads((Path(model) / "config.json").read_text())
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    (Path(model) / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
    code, out, _ = packtrain("probe", model, "--device", "cpu", "--data", str(folder), "--tiny")
    assert code == 0
    (Path(model) / "config.json").write_text(
        json.dumps({**config, "rope_parameters": rope, "max_position_embeddings": 32})
    )
    code, out, _ = packtrain("probe", model, "--device", "cpu")
    assert code == 0
    assert "dynamic rotary embeddings change for all documents of a batch when one is longer than 32" in " ".join(
        out.split()
    )
    code, out, _ = packtrain("probe", model, "--device", "cpu", "--data", str(folder))
    assert code == 1
    assert "NOT isolated" in out
    assert "truncate.max_length" in out


def test_a_leak(packtrain, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = saved(tmp_path, "gpt_oss")
    code, out, _ = packtrain("probe", folder, "--attention", "eager", "--device", "cpu")
    assert code == 1
    assert "fix: set attention: auto" in out
    code, out, _ = packtrain("probe", folder, "--device", "cpu", "--dtype", "bfloat16")
    assert code == 0
    assert "attention packed_varlen: a loop over documents" in out


def test_as_json(packtrain, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = packtrain("probe", saved(tmp_path, "llama"), "--json", "--random", "--device", "cpu")
    found = json.loads(out)
    assert code == 0
    assert found["isolated"] is True
    assert found["applied"]["kernel"] == "a loop over documents"
    assert {check["name"] for check in found["checks"]} >= {"isolation", "control", "equivalence", "calls"}


def test_a_model_that_cannot_be_packed(packtrain, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = packtrain("probe", saved(tmp_path, "falcon"), "--device", "cpu")
    assert code == 1
    assert "NOT isolated: FalconForCausalLM: attention: packed_varlen could not be set" in out
    code, out, _ = packtrain("probe", saved(tmp_path, "falcon"), "--device", "cpu", "--json")
    assert code == 1
    assert json.loads(out)["isolated"] is False


def test_a_model_of_any_size_when_tiny(packtrain, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    config = CONFIG_MAPPING["llama"](hidden_size=16384, num_hidden_layers=126, num_attention_heads=128,
                                     num_key_value_heads=8, intermediate_size=53248, vocab_size=128256)  # fmt: skip
    config.save_pretrained(tmp_path / "405b")
    code, _, err = packtrain("probe", str(tmp_path / "405b"), "--device", "cpu")
    assert code == 2
    assert "billion parameters take" in err
    assert "--tiny" in err
    code, out, _ = packtrain("probe", str(tmp_path / "405b" / "config.json"), "--tiny", "--device", "cpu")
    assert code == 0
    assert "tiny, weights at random" in out
