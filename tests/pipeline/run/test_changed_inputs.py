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
