"""The cache's note of how rows were encoded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packtrain.pipeline.encode.encode_spec import EncodeSpec
from packtrain.pipeline.encode.prepared import make_spec
from packtrain.pipeline.encode.task import EncodeTask, load_encoder
from packtrain.pipeline.encode.tokenizer import load_tokenizer
from packtrain.pipeline.explain.redo import Reencoded, ReferenceEncoder
from packtrain.pipeline.inputs.blocks import Block
from packtrain.pipeline.store.checksummed import seal
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.config.config import TokenizerConfig
from packtrain.schemas.errors import IntegrityError, TokenizerError
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options


def test_a_specification_is_what_its_name_says(little: Any, tmp_path: Path) -> None:
    little.copy(tmp_path)
    cache = LocalStore(tmp_path / "cache")
    (path,) = cache.path("specs").iterdir()
    name = f"specs/{path.name}"
    spec = EncodeSpec.load(cache, name)
    assert spec.save(cache) == name
    other = replace(spec, template="{{ 'another' }}")
    for data in (msgspec.json.encode(other), msgspec.json.encode({"of": "another shape"}), b"[" * 10_000):
        path.write_bytes(seal(data))
        with pytest.raises(IntegrityError):
            EncodeSpec.load(cache, name)
        assert spec.save(cache) == name
        assert EncodeSpec.load(cache, name) == spec, "a run puts the right one in its place"


def test_another_jinja2_makes_parts_of_its_own(little: Any, tmp_path: Path) -> None:
    little.copy(tmp_path)
    cache = LocalStore(tmp_path / "cache")
    (path,) = cache.path("specs").iterdir()
    spec = EncodeSpec.load(cache, f"specs/{path.name}")
    other = replace(spec, jinja2_version="3.0.0", template="{% for m in messages %}{{ m.content }}{% endfor %}")
    same = replace(other, jinja2_version=spec.jinja2_version)
    block = Block(0, 9, 0, 1, "hash")
    for conversational in (True, False):
        tasks = [
            EncodeTask(Path("x"), block, "messages", Options(), 99, cache, one.name, one.payload(), conversational)
            for one in (other, same)
        ]
        assert (tasks[0].key != tasks[1].key) is conversational
    with pytest.raises(TokenizerError):
        load_encoder(cache, other.save(cache))
    load_encoder(cache, same.save(cache))


def test_a_template_that_may_never_end_is_rendered_by_another_process(tiny_tokenizer: Path) -> None:
    """A single row, as `inspect --id` shows it: the same as in this process, which one step could hang for ever."""
    tokenizer = load_tokenizer(
        tiny_tokenizer, chat_template="{% for m in messages %}{{ [m.role, m.content] }}{% endfor %}"
    )
    spec = make_spec(tokenizer, TokenizerConfig(path=""), "tokenizers", "", needs_template=True)
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    example = Example(0, -1, "", chat[:1], chat[1:], None)
    here = ReferenceEncoder(spec, apart=False)(example)
    assert isinstance(here, Reencoded)
    assert here.text == "['user', 'Why?']['assistant', 'Because.']"
    assert ReferenceEncoder(spec)(example) == here
    refused = replace(spec, template="{{ [messages] }}{{ raise_exception('no') }}")
    assert "no" in str(ReferenceEncoder(refused)(example))
