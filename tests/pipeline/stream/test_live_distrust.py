"""An engine found wrong in the middle of a stream: the stream stops, and names the key that takes the reference."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.encode import task as encode
from packtrain.pipeline.stream import stream
from packtrain.pipeline.stream.stream import LiveWindows
from packtrain.schemas.errors import IntegrityError
from packtrain.stages.tokenize import encode as stage
from packtrain.stages.tokenize import engines

from tests.support.in_this_process import InThisProcess

fastokens = pytest.importorskip("fastokens")


@pytest.fixture(autouse=True)
def _fresh_encoders() -> Iterator[None]:
    """Encoders are kept in a process; a lying one must not outlive its test."""
    encode.load_encoder.cache_clear()
    engines.load_engine.cache_clear()
    yield
    encode.load_encoder.cache_clear()
    engines.load_engine.cache_clear()


def rows(config: dict[str, Any]) -> list[dict[str, list[Any]]]:
    """All rows of an epoch, window by window."""
    windows = LiveWindows(config, window_bytes=1, workers=0)
    try:
        return [window.lay_out(0, window.rows).to_pydict() for window in windows.walk(0, 0, 1)]
    finally:
        windows.close()


def test_a_lying_engine_ends_the_stream(tmp_path: Path, tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "Pool", InThisProcess)

    class Lying(engines.FastokensEngine):
        def encode(self, texts: Any) -> engines.EngineTokens:
            return super().encode([text.replace("MOON", "MOO") for text in texts])

    monkeypatch.setitem(engines.ENGINES, "fastokens", Lying)
    monkeypatch.setattr(stage, "ENGINE_CHECK", 0)  # every text is held against the reference
    paths = []
    for number in range(4):
        paths.append(tmp_path / f"{number}.jsonl")
        lines = [json.dumps({"text": f"row {number} {i} says sun"}) for i in range(100)]
        # The first look sees the first rows of the first block only.
        paths[-1].write_text("\n".join([*lines, '{"text": "row says MOON"}']) + "\n")

    def config(cache: str, **tokenizer: str) -> dict[str, Any]:
        return {
            "out": str(tmp_path / "data"),
            "cache": str(tmp_path / cache),
            "tokenizer": {"path": str(tiny_tokenizer), **tokenizer},
            "sources": [{"name": "texts", "format": "text", "path": [str(path) for path in paths]}],
        }

    for _ in range(2):
        with pytest.raises(IntegrityError, match=r"fastokens .*MOON.*engine: tokenizers"):
            rows(config("auto"))
    assert rows(config("auto", engine="tokenizers"))
