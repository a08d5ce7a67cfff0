"""The engine against plain `generate`, and groups alone against groups among others."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from packtrain.schemas.errors import ConfigError
from packtrain.schemas.models.samples import SampleAnswer, SampleRequest, SampleSettings
from packtrain.training.models.generate import GenerateEngine, ModelFolder, find_model, load_for_generation

from tests.support.small_models import write_model
from tests.training.trainer.tiny_models import make

Answers = dict[SampleRequest, SampleAnswer]
REQUESTS = [
    SampleRequest(tuple((7 * at + row) % 97 for at in range(4 + 5 * row)), 1000 * row + number)
    for row in range(3)
    for number in range(3)
]


def drawn(engine: Any, groups: Sequence[Sequence[SampleRequest]]) -> Answers:
    found = dict(zip((one for group in groups for one in group), engine.answers(groups), strict=True))
    assert len(found) == len(REQUESTS)
    return found


def load(place: ModelFolder) -> Any:
    return load_for_generation(place, dtype="auto", device=torch.device("cpu"))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_groups_answers_are_the_same_among_any_others(temperature: float) -> None:
    settings = SampleSettings(temperature, 0.95 if temperature else 1.0, 16, (5, 11))
    groups = [REQUESTS[at : at + 3] for at in (0, 3, 6)]
    whole = drawn(GenerateEngine(make("Llama"), settings), groups)
    torch.rand(7)  # what others drew before does not count
    assert drawn(GenerateEngine(make("Llama"), settings), groups[::-1]) == whole
    for one in whole.values():
        assert one.token_ids is not None
        ended = [token in settings.stop_ids for token in one.token_ids]
        assert not any(ended[:-1])
        assert ended[-1] == (one.finish_reason == "stop")
        assert len(one.token_ids) == 16 or one.finish_reason == "stop"
    of_a_row = [whole[one].token_ids for one in REQUESTS[:3]]
    assert len(set(of_a_row)) == (3 if temperature else 1)


def test_greedy_is_what_generate_gives() -> None:
    from transformers import GenerationConfig

    settings = SampleSettings(0.0, 1.0, 12, (5,))
    found = drawn(GenerateEngine(make("Llama"), settings), [REQUESTS])
    model = make("Llama")
    model.generation_config = GenerationConfig(eos_token_id=5, pad_token_id=5)
    for one in REQUESTS[::3]:
        ids = torch.tensor([one.token_ids])
        plain = model.generate(ids, do_sample=False, max_new_tokens=12)[0, ids.shape[1] :]
        assert found[one].token_ids == tuple(plain.tolist())


def test_a_folder_is_loaded_and_its_own_generation_settings_do_not_count(tmp_path: Path) -> None:
    from transformers import GenerationConfig

    folder = write_model(tmp_path / "model")
    GenerationConfig(top_k=1, do_sample=True, repetition_penalty=5.0, eos_token_id=[7, 9]).save_pretrained(folder)
    place = find_model(folder)
    assert (place.vocabulary, place.positions, place.adapter) == (3200, 2048, None)
    assert place.stop_ids[:2] == (7, 9)
    settings = SampleSettings(1.5, 1.0, 8)
    found = drawn(GenerateEngine(load(place), settings), [REQUESTS])
    assert len({one.token_ids for one in found.values()}) == len(REQUESTS)  # top_k=1 would make those of a row alike
    before = place.digest
    other = write_model(tmp_path / "other", hidden_size=64)
    assert find_model(other).digest != before


def test_an_adapter_is_merged(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    base = write_model(tmp_path / "base")
    torch.manual_seed(3)
    wrapped = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        peft.LoraConfig(target_modules="all-linear", init_lora_weights=False),
    )
    wrapped.save_pretrained(tmp_path / "adapter")
    settings = SampleSettings(0.0, 1.0, 8)
    place = find_model(tmp_path / "adapter")
    assert (place.folder, place.adapter) == (base, tmp_path / "adapter")
    assert find_model(tmp_path / "adapter", base).digest == place.digest != find_model(base).digest
    found = drawn(GenerateEngine(load(place), settings), [REQUESTS])
    merged = wrapped.merge_and_unload().eval()
    assert found == drawn(GenerateEngine(merged, settings), [REQUESTS])
    plain = load(find_model(base))
    assert found != drawn(GenerateEngine(plain, settings), [REQUESTS])


class _Bomb:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("exploded"),)


def test_a_hostile_folder_runs_nothing_and_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_model(tmp_path / "model")
    whole = json.loads((folder / "config.json").read_text())
    for changes, what in (
        ({"_attn_implementation": "some/kernel"}, "wants attention from elsewhere, 'some/kernel'"),
        ({"num_attention_heads": 0}, "cannot be read"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine"}}, "cannot be read"),
    ):
        (folder / "config.json").write_text(json.dumps(whole | changes))
        with pytest.raises(ConfigError, match=what):
            find_model(folder)
    (folder / "config.json").write_text(json.dumps(whole))
    index = folder / "model.safetensors.index.json"
    for name in ("../model.safetensors", "/etc/passwd", "..", 5):
        index.write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
        with pytest.raises(ConfigError, match="is not a name below the folder"):
            load(find_model(folder))
    index.unlink()
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    with pytest.raises(ConfigError, match=r"has an adapter_config\.json but no weights"):  # and asks no hub for them
        find_model(adapter)
    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": _Bomb()}, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="a pickle with more than weights, which is not loaded"):
        load(find_model(folder))
    assert not Path("exploded").exists()
