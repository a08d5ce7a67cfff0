"""`packtrain probe`: what it prints, and that its exit code is the answer."""

import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
from packtrain.pipeline.cli.main import main
from packtrain.schemas.errors import LeakError
from packtrain.schemas.parallel import Parallel
from packtrain.training.attention.apply import use_packed
from packtrain.training.probe import probe
from packtrain.training.probe.heads import heads_check
from transformers import CONFIG_MAPPING

from tests.training.conftest import MakePacked
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


def test_heads_that_devices_cannot_share(packtrain, tmp_path: Path, make_packed: MakePacked) -> None:  # type: ignore[no-untyped-def]
    """The counts of the whole model decide, also for a tiny copy; what the data are packed for is the default."""
    model = saved(tmp_path, "llama")  # 4 heads
    where = ("--device", "cpu", "--tiny")
    for devices, code in ((2, 0), (4, 0), (3, 1), (8, 1)):
        found, out, _ = packtrain("probe", model, *where, "--ulysses", str(devices))
        assert found == code, devices
    words = " ".join(out.split())
    assert "at fault: heads: 4 query heads, 4 of keys and values" in words
    assert "they can be for cp 1, 2, 4" in words
    assert "NOT divisible: documents are apart" in words
    data = make_packed("ulysses", 60, parallel={"cp": 8, "layout": "ulysses"})
    assert packtrain("probe", model, *where, "--data", str(data))[0] == 1
    assert packtrain("probe", model, *where, "--data", str(data), "--ulysses", "4")[0] == 0
    assert packtrain("probe", model, *where, "--data", str(make_packed("number", 170)))[0] == 0
    ring = make_packed("ring-8", 60, parallel={"cp": 8, "layout": "ring"})
    assert packtrain("probe", model, *where, "--data", str(ring))[0] == 0


@pytest.mark.parametrize(
    ("queries", "keys", "cp", "tp", "good"),
    [
        (32, 8, 8, 1, True),
        (32, 8, 16, 1, True),  # each head of keys on two devices
        (32, 8, 32, 1, True),
        (32, 8, 64, 1, False),
        (32, 8, 12, 1, False),
        (24, 8, 12, 1, False),  # 12 neither divides 8 nor is a multiple
        (24, 8, 8, 1, True),
        (28, 4, 7, 1, False),
        (28, 4, 4, 1, True),
        (32, 8, 4, 2, True),
        (12, 4, 4, 2, False),
        (71, 1, 71, 1, True),
        (71, 1, 2, 1, False),
    ],
)
def test_which_devices_can_share_heads(queries: int, keys: int, cp: int, tp: int, good: bool) -> None:
    config = CONFIG_MAPPING["llama"](num_attention_heads=queries, num_key_value_heads=keys, hidden_size=64 * queries)
    (check,) = heads_check(config, Parallel(cp, tp, "ulysses"))
    assert check.passed == good
    assert heads_check(config, Parallel(cp, tp, "ring")) == heads_check(config, None) == []
    known = re.search(r"they can be for cp ([0-9, ]+)$", check.detail)
    assert (known is None) == good or "no cp" in check.detail
    for size in map(int, known[1].split(", ")) if known else ():
        assert all(one.passed for one in heads_check(config, Parallel(size, tp, "ulysses")))


def test_a_leak_is_named_before_heads() -> None:
    leaking = probe(build("gpt_oss"), parallel=Parallel(3, layout="ulysses"))
    assert leaking.verdict.startswith("NOT isolated")
    with pytest.raises(LeakError, match="does not keep packed documents apart"):
        leaking.require()
    model = build("llama")
    use_packed(model)
    with pytest.raises(LeakError, match="has attention heads that the devices cannot share equally: heads is 4 query"):
        probe(model, parallel=Parallel(3, layout="ulysses")).require()
    assert probe(model, parallel=Parallel(2, layout="ulysses")).require().check("heads") is not None


def test_a_model_without_attention(packtrain, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = packtrain("probe", saved(tmp_path, "mamba"), "--device", "cpu")
    assert code == 1
    assert "none of its layers has attention that packtrain can set" in out
    assert not any(line.split()[:1] == ["attention"] for line in out.splitlines())


def test_a_leak(packtrain, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = saved(tmp_path, "gpt_oss")
    code, out, _ = packtrain("probe", folder, "--attention", "eager", "--device", "cpu")
    assert code == 1
    assert "at fault: attention: eager" in out
    assert "fix:      set attention: auto" in out
    code, out, _ = packtrain("probe", folder, "--device", "cpu", "--dtype", "bfloat16")
    assert code == 0
    assert "attention packed_block_mask: SDPA, block mask; it has attention sinks" in out


def test_as_json(packtrain, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = packtrain("probe", saved(tmp_path, "llama"), "--json", "--random", "--device", "cpu")
    found = json.loads(out)
    assert code == 0
    assert found["isolated"] is True
    assert found["applied"]["kernel"] == "per document"
    assert {check["name"] for check in found["checks"]} >= {"isolation", "control", "equivalence", "calls"}


def test_a_model_that_cannot_be_packed(packtrain, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = packtrain("probe", saved(tmp_path, "bloom"), "--device", "cpu")
    assert code == 1
    assert "NOT isolated: BloomForCausalLM: attention: packed_block_mask could not be set" in out
    code, out, _ = packtrain("probe", saved(tmp_path, "bloom"), "--device", "cpu", "--json")
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


@pytest.mark.parametrize(
    ("files", "arguments", "said"),
    [
        ({}, [], "there is no config.json"),
        ({"config.json": "{"}, [], "config.json:"),
        ({"config.json": '{"model_type": "nonesuch"}'}, [], "nonesuch"),
        ({"config.json": '{"model_type": "llama", "_attn_implementation": "a/b"}'}, [], "attention from elsewhere"),
        ({"config.json": '{"model_type": "vit"}'}, [], "cannot build this model"),
        ({"config.json": '{"model_type": "llama"}'}, ["--dtype", "int8"], "--dtype int8: choose one of"),
        ({"config.json": '{"model_type": "llama"}'}, ["--tiny", "--dtype", "float33"], "choose one of"),
    ],
)
def test_mistakes(packtrain, tmp_path: Path, files: dict[str, str], arguments: list[str], said: str) -> None:  # type: ignore[no-untyped-def]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    code, _, err = packtrain("probe", str(tmp_path), "--device", "cpu", *arguments)
    assert code == 2
    assert said in err
