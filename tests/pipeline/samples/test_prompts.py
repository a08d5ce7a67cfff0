"""Prompts: the tokens that training puts before an answer, the right row of each, and no bad row passed over."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.run.prep_only import prepare_source
from packtrain.pipeline.samples.prompts import PromptSet, read_prompts
from packtrain.schemas.config.config import SourceConfig, TokenizerConfig
from packtrain.schemas.errors import InputError, TokenizerError

from tests import kit

Row = dict[str, Any]
Write = Callable[[list[Any]], Path]


@pytest.fixture
def data(tmp_path: Path) -> Write:
    """`data(rows)`: a file of JSON lines; rows that are texts are written unchanged."""

    def write(rows: list[Any]) -> Path:
        path = tmp_path / "test.jsonl"
        path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in rows))
        return path

    return write


def read(path: Path, tokenizer: Path) -> PromptSet:
    return read_prompts(path, TokenizerConfig(path=str(tokenizer)), path.parent)


def prepared(path: Path, **source: Any) -> Path:
    """What `packtrain prep --prompt-only` makes of rows."""
    out = path.with_suffix(".prompts.jsonl")
    prepare_source(SourceConfig.model_validate({"name": "a", "path": str(path), **source}), path.parent, out,
                   prompt_only=True)  # fmt: skip
    return out


def trained_prompts(rows: list[Row]) -> list[tuple[int, ...]]:
    """What stands before the first trained token of each packed document, in the order of documents."""
    found = {}
    for row in rows:
        begin = 0
        for doc, length in zip(row["doc_ids"], row["seq_lengths"], strict=True):
            ids, labels = (row[key][begin : begin + length] for key in ("input_ids", "labels"))
            found[doc] = tuple(ids[: next(at for at, label in enumerate(labels) if label != -100)])
            begin += length
    return [found[doc] for doc in sorted(found)]


CHATS = [
    {"messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Über 22?"},
        {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "def f():\n  "},
        {"role": "assistant", "content": "return 1"},
    ]},
    {"messages": [{"role": "user", "content": "🙂"}, {"role": "assistant", "content": "ok"}]},
]  # fmt: skip
PROBLEMS: list[Row] = [
    {"id": 5, "question": "Add.\n", "solutions": '["print(1)"]', "input_output": '{"inputs": ["1"], "outputs": ["1"]}'},
    {"id": "x", "question": "Sub.", "solutions": '["print(2)"]', "starter_code": "def f():"},
]


def check_as_trained(tmp_path: Path, tokenizer: Path, *sources: Row) -> list[PromptSet]:
    """Packs the data of some sources with every answer trained, and compares the prompts."""
    named = [{**source, "name": f"s{at}", "path": str(source["path"])} for at, source in enumerate(sources)]
    keys = {"tokenizer": {"path": str(tokenizer)}, "truncate": {"max_length": 4096}}
    packed = kit.packed(kit.configure(tmp_path, *named, mask="completion", **keys))
    prompts = [read(prepared(**source), tokenizer) for source in sources]
    before = trained_prompts(packed.rows())
    assert [one.token_ids for each in prompts for one in each.prompts] == before
    assert len(before) >= 2 * len(sources)
    return prompts


SOURCES: list[tuple[list[Row], Row]] = [
    (CHATS, {"format": "messages"}),
    (PROBLEMS, {"format": "apps"}),
    ([{"prompt": "left:\n", "completion": "valley"}, {"prompt": "for\n", "completion": "it"}],
     {"format": "prompt_completion"}),
    ([{"prompt": "left", "completion": "valley"}, {"prompt": "for", "completion": "it"}],
     {"format": "prompt_completion", "style": "chat"}),
]  # fmt: skip


@pytest.mark.parametrize("name", ["plain", pytest.param("bos", marks=pytest.mark.slow)])
def test_a_prompt_is_what_training_puts_before_the_answer(tmp_path: Path, make_tokenizer: Any, name: str) -> None:
    tokenizer = make_tokenizer(f"prompts-{name}", bos=name == "bos")
    sources = []
    for number, (rows, source) in enumerate(SOURCES):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        sources.append({**source, "path": path})
    found = check_as_trained(tmp_path, tokenizer, *sources)
    for prompts, source in zip(found, sources, strict=True):
        assert prompts.stop_ids == (3,)
        plain = (source["format"] == "prompt_completion" and "style" not in source) or "apps" in source
        assert all((one.token_ids[0] == 1) == (name == "bos" and plain) for one in prompts.prompts)


def test_rows_are_those_of_the_data(make_tokenizer: Any, data: Write) -> None:
    path = prepared(data([PROBLEMS[0], "", PROBLEMS[1]]), format="apps")
    rows = read(path, make_tokenizer("prompts-plain")).prompts
    assert [(one.id, one.row) for one in rows] == [("5", 0), ("x", 2)]


def test_a_conversation_that_ends_with_a_question_is_all_prompt(make_tokenizer: Any, data: Write) -> None:
    whole = CHATS[0]["messages"]
    path = prepared(data([{"messages": whole[:-1]}, {"messages": whole}]), format="messages")
    first, second = read(path, make_tokenizer("prompts-plain")).prompts
    assert first.token_ids == second.token_ids


def test_a_bad_row_is_named_before_any_work(make_tokenizer: Any, data: Write) -> None:
    tokenizer = make_tokenizer("prompts-plain")
    good = {"id": "a", "row": 0, "prompt": CHATS[1]["messages"][:1]}
    for bad, why in (
        ("{", "invalid_json"),
        (good | {"prompt": []}, "empty"),
        (good | {"prompt": 5}, "wrong_type"),
        (good | {"row": -1}, "row"),
        (good | {"id": None}, "id"),
        (PROBLEMS[0], "missing_key"),
    ):
        with pytest.raises(InputError, match=rf"line 2: .*{why}.*; give what packtrain prep --prompt-only writes"):
            read(data([good, bad]), tokenizer)
    with pytest.raises(InputError, match="two prompts belong to row 0"):
        read(data([good, good]), tokenizer)
    with pytest.raises(InputError, match="holds no prompts"):
        read(data([""]), tokenizer)
    endless = data([good])
    os.truncate(endless, 1 << 40)
    with pytest.raises(InputError, match="line 2 has 64 MiB or more"):
        read(endless, tokenizer)


def test_conversations_need_a_template(make_tokenizer: Any, data: Write) -> None:
    rows = [{"id": "a", "row": 0, "prompt": CHATS[1]["messages"][:1]}]
    with pytest.raises(TokenizerError, match="has no chat template, which conversations need"):
        read(data(rows), make_tokenizer("prompts-bare", template=None))
