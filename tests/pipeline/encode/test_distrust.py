"""An engine or a traced template that gives wrong results: nothing made with it is used, and the run says so."""

import json
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline import demo
from packtrain.pipeline.encode import task as encode
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run import workspace
from packtrain.pipeline.run.driver import run
from packtrain.schemas.errors import IntegrityError
from packtrain.schemas.rows import Messages
from packtrain.stages.template.render import Renderer
from packtrain.stages.template.rendered import Rendered
from packtrain.stages.tokenize import encode as stage
from packtrain.stages.tokenize import engines

from tests.support.in_this_process import InThisProcess

fastokens = pytest.importorskip("fastokens")

TOKENIZER = Path(demo.__file__).parent / "tokenizer"
ROWS = 300


class Notes(Silent):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """See Observer."""
        self.notes.append(text)


@pytest.fixture(autouse=True)
def _fresh_encoders() -> Any:
    """Encoders are kept in a process; a lying one must not outlive its test."""
    encode.load_encoder.cache_clear()
    engines.load_engine.cache_clear()
    yield
    encode.load_encoder.cache_clear()
    engines.load_engine.cache_clear()


def config(folder: Path, out: str, **tokenizer: Any) -> dict[str, Any]:
    """300 chats; only a row that the engine check never sees says MOON."""
    rows = folder / "rows.jsonl"
    if not rows.exists():
        lines = []
        for index in range(ROWS):
            word = "MOON" if index == 250 else "sun"
            messages = [{"role": "user", "content": f"What is {index}?"}, {"role": "assistant", "content": word}]
            lines.append(json.dumps({"messages": messages}))
        rows.write_text("\n".join(lines) + "\n")
    return {
        "out": str(folder / out),
        "cache": str(folder / f"cache-{out}"),
        "tokenizer": {"path": str(TOKENIZER), **tokenizer},
        "sources": [{"name": "chat", "format": "messages", "path": str(rows)}],
        "truncate": {"max_length": 256},
        "run": {"workers": 1, "report": False},
    }


def shards(folder: Path) -> list[bytes]:
    """The bytes of all shards."""
    return [path.read_bytes() for path in sorted((folder / "shards").glob("*.arrow"))]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "Pool", InThisProcess)


@pytest.fixture
def lying_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """fastokens, but wrong on one word; and every text is compared with the reference."""

    class Lying(engines.FastokensEngine):
        def encode(self, texts: Any) -> engines.EngineTokens:
            return super().encode([text.replace("MOON", "MOO") for text in texts])

    monkeypatch.setitem(engines.ENGINES, "fastokens", Lying)
    monkeypatch.setattr(stage, "ENGINE_CHECK", 0)


def test_a_lying_engine_is_replaced_by_the_reference(tmp_path: Path, lying_engine: None) -> None:
    notes = Notes()
    manifest = run(config(tmp_path, "auto"), observer=notes)
    assert manifest.plan["encode"]["engine"] == "tokenizers"
    assert any("reference" in note for note in notes.notes), notes.notes

    reference = run(config(tmp_path, "reference", engine="tokenizers"))
    assert len(shards(tmp_path / "auto")) > 0
    assert shards(tmp_path / "auto") == shards(tmp_path / "reference")
    assert manifest.ledger.sources["chat"].rows_used == reference.ledger.sources["chat"].rows_used == ROWS


def test_it_is_not_trusted_again(tmp_path: Path, lying_engine: None) -> None:
    run(config(tmp_path, "auto"))
    again = {**config(tmp_path, "auto"), "out": str(tmp_path / "second"), "truncate": {"max_length": 128}}
    notes = Notes()
    manifest = run(again, observer=notes)
    assert manifest.plan["encode"]["engine"] == "tokenizers"
    assert not any("encoded again" in note for note in notes.notes)


def test_that_the_fast_engines_are_missing_is_said_once_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = metadata.version

    def version(package: str) -> str:
        if package in ("fastokens", "gigatoken"):
            raise PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(engines, "version", version)
    notes = Notes()
    manifest = run(config(tmp_path, "slow"), observer=notes)
    assert manifest.plan["encode"]["engine"] == "tokenizers"
    said = [note for note in notes.notes if "packtrain[fast]" in note]
    assert ["packtrain[fast]" in one for one in said] == [True]
    again = {**config(tmp_path, "slow"), "out": str(tmp_path / "second"), "seed": 7}
    notes.notes.clear()
    run(again, observer=notes)
    assert not [note for note in notes.notes if "fast" in note]


def test_an_engine_asked_for_by_name_stops_the_run(tmp_path: Path, lying_engine: None) -> None:
    with pytest.raises(IntegrityError):
        run(config(tmp_path, "named", engine="fastokens"))
    assert not (tmp_path / "named" / "manifest.json").exists()


@pytest.mark.slow
def test_a_lying_trace_is_replaced_by_jinja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lying(Renderer):
        def __call__(self, prompt: Messages, completion: Messages, tools: Any = None) -> Rendered:
            rendered = super().__call__(prompt, completion, tools)
            if self._trace and "MOON" in rendered.text:
                self.mismatches += 1
                return rendered._replace(text=rendered.text.replace("MOON", "MARS"))
            return rendered

    monkeypatch.setattr(encode, "Renderer", Lying)
    notes = Notes()
    manifest = run(config(tmp_path, "traced"), observer=notes)
    assert manifest.plan["encode"]["trace"] is False
    assert any("jinja2" in note for note in notes.notes), notes.notes
    monkeypatch.undo()
    encode.load_encoder.cache_clear()
    run(config(tmp_path, "honest", trace=False))
    assert len(shards(tmp_path / "traced")) > 0
    assert shards(tmp_path / "traced") == shards(tmp_path / "honest")
