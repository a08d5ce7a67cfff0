"""The cache's note of how rows were encoded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packtrain.pipeline.encode.spec import OF_TEMPLATES, EncoderKey, EncodeSpec, RenderSpec
from packtrain.pipeline.encode.task import load_encoder
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.sealed_notes import seal
from packtrain.schemas.errors import ConfigError, IntegrityError


def test_a_specification_is_what_its_name_says(little: Any, tmp_path: Path) -> None:
    little.copy(tmp_path)
    cache = LocalStore(tmp_path / "cache")
    (path,) = cache.path("specs").iterdir()
    name = f"specs/{path.name}"
    spec = RenderSpec.load(cache, name)
    assert spec.save(cache) == name
    other = replace(spec, tokenizer=replace(spec.tokenizer, chat_template="{{ 'another' }}"))
    for data in (
        seal(msgspec.json.encode(other), "specs/other.json"),
        seal(b'{"of":"another shape"}', name),
        b"[" * 10_000,
    ):
        path.write_bytes(data)
        with pytest.raises(IntegrityError):
            RenderSpec.load(cache, name)
        assert spec.save(cache) == name
        assert RenderSpec.load(cache, name) == spec, "a run puts the right one in its place"


def test_another_jinja2_makes_parts_of_its_own(little: Any, tmp_path: Path) -> None:
    little.copy(tmp_path)
    cache = LocalStore(tmp_path / "cache")
    (path,) = cache.path("specs").iterdir()
    spec = RenderSpec.load(cache, f"specs/{path.name}")
    tokenizer = replace(spec.tokenizer, chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
    other = replace(spec, jinja2_version="3.0.0", tokenizer=tokenizer)
    same = replace(other, jinja2_version=spec.jinja2_version)
    payloads = other.payload(), same.payload()
    assert {key for key, value in payloads[0].items() if value != payloads[1][key]} == {"jinja2_version"}
    assert "jinja2_version" in OF_TEMPLATES, "parts of plain texts do not depend on it"
    for render in (other, same):
        render.save(cache)
    with pytest.raises(ConfigError):
        load_encoder(EncoderKey.of(cache, EncodeSpec.of(other, "tokenizers")))
    key = EncoderKey.of(cache, EncodeSpec.of(same, "tokenizers"))
    load_encoder(key)
    with pytest.raises(ConfigError, match="this worker has no fasttokens"):
        load_encoder(replace(key, engine="fasttokens"))
