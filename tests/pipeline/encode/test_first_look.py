"""Which engine encodes, what a run says about it, and what happens if it is found wrong later."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from packtrain.pipeline.encode import engine_choice, first_look
from packtrain.pipeline.encode import task as encode
from packtrain.pipeline.run import workers
from packtrain.schemas.errors import IntegrityError
from packtrain.schemas.files.copy_cache import user_folder
from packtrain.schemas.rows import Messages
from packtrain.stages.render.rendered import Rendered
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.tokenize import encode as stage
from packtrain.stages.tokenize import engines
from packtrain.stages.tokenize.engine_check import fuzz_texts

from tests import kit
from tests.support.in_this_process import InThisProcess

fastokens = pytest.importorskip("fastokens")


@pytest.fixture(autouse=True)
def _fresh_encoders() -> Any:
    """Encoders are kept in a process; a lying one must not outlive its test."""
    encode.load_encoder.cache_clear()
    engines.load_engine.cache_clear()
    yield
    encode.load_encoder.cache_clear()
    engines.load_engine.cache_clear()


def config(
    folder: Path, out: str, *, moon: int = 250, said: str = "MOON", suffix: str = ".jsonl", **tokenizer: Any
) -> dict[str, Any]:
    """300 chats, in a folder of small files without a suffix; one says MOON, by default one that the first look never
    sees.
    """
    chats = [(said if index == moon else "sun", f"What is {index}?") for index in range(300)]
    rows = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": word}]}
        for word, question in chats
    ]
    path = folder / f"rows-{moon}{suffix}"
    for number, some in enumerate([rows] if suffix else [[row] for row in rows]):
        kit.write(path if suffix else path / f"{number:03}.jsonl", some)
    source = kit.source("chats", path=path.name)
    places = {"out": str(folder / out), "cache": str(folder / f"cache-{out}")}
    return kit.configure(folder, source, tokenizer=tokenizer, **places)


def pack(config: dict[str, Any]) -> tuple[str, list[str]]:
    """The engine of a run, and its notes."""
    packed = kit.packed(config)
    return packed.record["plan"]["encode"]["engine"], packed.notes


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "Pool", InThisProcess)


@pytest.fixture
def lying_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """fastokens, but wrong on one word; and every text is compared with the reference."""

    class Lying(engines.FastokensEngine):
        def encode(self, texts: Any) -> engines.EngineTokens:
            return super().encode([text.replace("MOON", "MOO") for text in texts])

    monkeypatch.setitem(engines.ENGINES, "fastokens", Lying)
    monkeypatch.setattr(stage, "ENGINE_CHECK", 0)


def test_an_engine_that_is_found_wrong_ends_the_run(tmp_path: Path, lying_engine: None) -> None:
    for _ in range(2):
        with pytest.raises(IntegrityError, match="engine=tokenizers"):
            kit.packed(config(tmp_path, "lying"))
        assert not (tmp_path / "lying" / "manifest.json").exists()
    assert pack(config(tmp_path, "lying", engine="tokenizers"))[0] == "tokenizers"


def test_an_engine_that_errs_on_the_first_rows_is_not_taken(tmp_path: Path, lying_engine: None) -> None:
    engine, notes = pack(config(tmp_path, "auto", moon=20))
    assert engine == "tokenizers"
    (said,) = [note for note in notes if "MOON" in note]
    assert "fastokens" in said
    engine, notes = pack({**config(tmp_path, "auto", moon=20), "out": str(tmp_path / "again"), "seed": 7})
    assert engine == "tokenizers"
    assert not [note for note in notes if "MOON" in note], "it is said once"


@pytest.mark.parametrize("suffix", [".json", ".jsonl.gz", ".parquet", ".arrow", ""])
def test_the_first_rows_of_every_container_are_looked_at(tmp_path: Path, lying_engine: None, suffix: str) -> None:
    assert pack(config(tmp_path, "auto", moon=20, suffix=suffix))[0] == "tokenizers"


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_a_row_of_more_than_a_megabyte_is_not_looked_at(tmp_path: Path, lying_engine: None, suffix: str) -> None:
    with pytest.raises(IntegrityError, match="engine=tokenizers"):
        kit.packed(config(tmp_path, "long", moon=0, said="MOON " * 250_000, suffix=suffix))


class Wrong(engines.FastokensEngine):
    """fastokens, but wrong on hostile texts."""

    def encode(self, texts: Any) -> engines.EngineTokens:
        return super().encode([text.replace("\r\n", "\n") for text in texts])


def test_hostile_texts_are_compared_once_for_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "AGREED", f"engines-{tmp_path.name}")
    compared = Mock(side_effect=fuzz_texts)
    monkeypatch.setattr(first_look, "fuzz_texts", compared)
    with monkeypatch.context() as patch:
        patch.setitem(engines.ENGINES, "fastokens", Wrong)
        assert pack(config(tmp_path, "wrong"))[0] == "tokenizers"
        assert not (user_folder() / engine_choice.AGREED).exists(), "only an engine that agrees is kept"
    assert [pack(config(tmp_path, out))[0] for out in ("one", "two")] == ["fastokens"] * 2
    assert compared.call_count == 2


@pytest.mark.slow
def test_a_trace_that_is_found_wrong_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lying(Renderer):
        def __call__(self, prompt: Messages, completion: Messages, tools: Any = None) -> Rendered:
            rendered = super().__call__(prompt, completion, tools)
            if self._trace and "MOON" in rendered.text:
                self._counts.mismatches += 1
                return rendered._replace(text=rendered.text.replace("MOON", "MARS"))
            return rendered

    monkeypatch.setattr(encode, "Renderer", Lying)
    with pytest.raises(IntegrityError, match="trace=false"):
        kit.packed(config(tmp_path, "traced"))
    assert not (tmp_path / "traced" / "manifest.json").exists()
    kit.packed(config(tmp_path, "traced", trace=False))
