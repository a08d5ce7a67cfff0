"""Whole models from sharded checkpoints: to the bit, and nothing in them runs."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from packtrain.schemas.errors import ConfigError, IntegrityError, OutputError
from packtrain.training.models.sharded import export_checkpoint, read_index

from tests.support.small_models import TOKENIZER, write_model, write_sharded


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture
def checkpoint(model: Path, tmp_path: Path) -> Path:
    folder = write_sharded(model, tmp_path / "checkpoint-3")
    shutil.copytree(TOKENIZER, folder, dirs_exist_ok=True)
    return folder


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: one for path in sorted(folder.glob("*.safetensors")) for name, one in load_file(path).items()}


def test_it_is_the_same_model(model: Path, checkpoint: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    export_checkpoint(checkpoint, tmp_path / "out")
    found, wanted = weights(tmp_path / "out"), weights(model)
    assert found.keys() == wanted.keys()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(found[name], one) and torch.equal(loaded[name], one) for name, one in wanted.items())
    AutoTokenizer.from_pretrained(tmp_path / "out")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint-3", "out"]


class _Bomb:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("exploded"),)


def test_an_index_runs_nothing_and_leads_nowhere(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    index = checkpoint / "pytorch_model_fsdp_0" / ".metadata"
    whole = index.read_bytes()
    index.write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(IntegrityError, match=r"names .*, which an index does not need"):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not Path("exploded").exists()
    bad = [pickle.dumps(5)[:-1], pickle.dumps({"a": 5}), whole.replace(b"__0_0.distcp", b"../outsid.ds")]
    for name in ("os.system", "builtins.eval", "torch.load", "pathlib.Path", "torch.serialization.load"):
        module, _, attribute = name.rpartition(".")
        bad.append(f"c{module}\n{attribute}\n.".encode())
    for damaged in bad:
        index.write_bytes(damaged)
        with pytest.raises(IntegrityError):
            read_index(index)


def test_an_index_that_lacks_a_piece_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    """Or else what the memory held before would become weights."""
    index = checkpoint / "pytorch_model_fsdp_0" / ".metadata"
    found = read_index(index)
    next(iter(found.state_dict_metadata.values())).chunks.pop()
    index.write_bytes(pickle.dumps(found))
    with pytest.raises(IntegrityError, match="does not list all pieces of "):
        export_checkpoint(checkpoint, tmp_path / "out")


def test_a_checkpoint_of_adapters_is_refused(model: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from torch.distributed.checkpoint import save
    from transformers import AutoModelForCausalLM

    adapted = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(model), peft.LoraConfig(target_modules=["q_proj"])
    )
    folder = tmp_path / "checkpoint-3"
    save({"model": adapted.state_dict()}, checkpoint_id=folder / "pytorch_model_fsdp_0", no_dist=True)
    shutil.copy(model / "config.json", folder)
    with pytest.raises(
        ConfigError, match=r"holds a model with adapters; .* is the adapter alone: take that, or resume"
    ):
        export_checkpoint(folder, tmp_path / "out")


def test_a_damaged_shard_is_said_so(checkpoint: Path, tmp_path: Path) -> None:
    shard = next((checkpoint / "pytorch_model_fsdp_0").glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-100_000])
    with pytest.raises(ConfigError, match="is damaged or incomplete"):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint-3"]


def test_what_is_no_sharded_checkpoint_is_refused(model: Path, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "no", model, tmp_path / "empty"):
        with pytest.raises(ConfigError, match=r"no sharded weights .* zero_to_fp32\.py"):
            export_checkpoint(folder, tmp_path / "out")
    with pytest.raises(OutputError, match="empty exists"):
        export_checkpoint(checkpoint, tmp_path / "empty")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "model_type": "no-such-model"}))
    with pytest.raises(ConfigError, match=r"the configuration .*config.json cannot be read"):
        export_checkpoint(checkpoint, tmp_path / "out")
