"""`packtrain probe`: its exit code is the answer, and what it says of weights, lengths and kernels."""

from pathlib import Path

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


def test_the_weights_of_a_folder(tmp_path: Path) -> None:
    code, said = probed(saved(tmp_path, "llama", weights=True))
    assert (code, "its own weights, float32 on cpu" in said, "FAILED" in said) == (0, True, False)


def test_a_leak_and_its_fix(tmp_path: Path) -> None:
    folder = saved(tmp_path, "gpt_oss")
    code, said = probed(folder, "--attention", "eager")
    assert (code, "set attention: auto" in said) == (1, True)
    code, said = probed(folder, "--dtype", "bfloat16")
    assert (code, "a loop over documents" in said) == (0, True)
    assert all(f" {check} " in said for check in ("isolation", "control", "equivalence"))


def test_a_model_that_cannot_be_packed(tmp_path: Path) -> None:
    code, said = probed(saved(tmp_path, "falcon"))
    assert (code, said.startswith("NOT isolated")) == (1, True)


def test_a_configuration_of_any_size(tmp_path: Path) -> None:
    config = CONFIG_MAPPING["llama"](hidden_size=16384, num_hidden_layers=126, num_attention_heads=128,
                                     num_key_value_heads=8, intermediate_size=53248, vocab_size=128256)  # fmt: skip
    config.save_pretrained(tmp_path / "405b")
    code, said = probed(tmp_path / "405b" / "config.json")
    assert (code, "tiny, weights at random" in said) == (0, True)


def test_a_configuration_that_does_not_shrink(tmp_path: Path) -> None:
    """64 dimensions are no multiple of three heads, which transformers says by an error of its own."""
    CONFIG_MAPPING["llama"](hidden_size=192, num_attention_heads=3).save_pretrained(tmp_path)
    code, said = probed(tmp_path / "config.json")
    assert code == 2
    assert "config.json: llama cannot be shrunk (" in said
    assert said.endswith("give a folder with weights")
