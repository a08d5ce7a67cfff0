"""Inputs that have changed since a run began in a folder: refused before the work, not after it."""

from pathlib import Path

import packtrain
import pytest
from packtrain.pipeline.observer import Observer
from packtrain.schemas.errors import OutputError

from tests import kit


class Stages(Observer):
    """Keeps the names of the stages that began."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, stage: str, total: int, unit: str) -> None:
        self.begun.append(stage)


def test_a_changed_input_is_refused_before_it_is_encoded(tmp_path: Path) -> None:
    config = kit.configure(tmp_path, "texts")
    first = Stages()
    packtrain.run(config, base=tmp_path, observer=first)
    assert "encode" in first.begun
    rows = tmp_path / "texts.jsonl"
    rows.write_bytes(rows.read_bytes() + b'{"text": "one more"}\n')
    second = Stages()
    with pytest.raises(OutputError, match=r"(?s)belongs to another run.*inputs"):
        packtrain.run(config, base=tmp_path, observer=second)
    assert second.begun
    assert "encode" not in second.begun


def refusal(tmp_path: Path, *sources: str) -> list[str]:
    """The lines of differences for which a folder of the source `texts` is refused to other sources."""
    config = kit.configure(tmp_path, "texts")
    packtrain.run(config, base=tmp_path)
    for name in sources:
        (tmp_path / f"{name}.jsonl").write_bytes((tmp_path / "texts.jsonl").read_bytes())
    config["sources"] = [{**config["sources"][0], "name": name, "path": f"{name}.jsonl"} for name in sources]
    with pytest.raises(OutputError) as refused:
        packtrain.run(config, base=tmp_path)
    first, *lines, last = str(refused.value).splitlines()
    assert first.endswith("Differences (there → here):")
    assert last.startswith("Choose another folder")
    return lines


def test_another_name_of_a_source_is_one_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, "rows") == ["  sources: texts → rows (another name, the same settings)"]


def test_sources_that_are_added_are_one_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, "texts", "rows") == ["  sources: texts → texts, rows"]


def test_settings_are_named_beside_another_name(tmp_path: Path) -> None:
    config = kit.configure(tmp_path, "texts")
    packtrain.run(config, base=tmp_path)
    config["sources"] = [{**config["sources"][0], "name": "rows", "max_rows": 5}]
    config["seed"] = 7
    with pytest.raises(OutputError) as refused:
        packtrain.run(config, base=tmp_path)
    lines = str(refused.value).splitlines()[1:-1]
    assert sorted(lines) == ["  configuration seed: 42 → 7", "  sources: texts → rows"]
