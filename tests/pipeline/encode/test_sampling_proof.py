"""The sampling proof in a run: what is said of the turns in the first rows, and of the tokens that end them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.decode import load_decoder
from packtrain.pipeline.encode.tokenizer import GENERATION_CONFIG as NAME
from packtrain.pipeline.encode.tokenizer import generation_stops
from packtrain.schemas.rows import IGNORE_INDEX

from tests import kit

OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CLOSED = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}" + OPEN
UNCLOSED = (  # as GLM: nothing ends a turn but the next header
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% endfor %}" + OPEN
)
COUNTING = "{{ messages | length }}" + CLOSED
"""Every prompt alone differs from the same prompt within the conversation."""

ONE_TURN = [{"role": "user", "content": "five"}, {"role": "assistant", "content": "six"}]
TWO_TURNS = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, *ONE_TURN]


class Proved:
    """Runs both conversations with a template."""

    def __init__(self, folder: Path, tokenizer: Path) -> None:
        self.folder, self.tokenizer = folder, folder / "tokenizer"
        shutil.copytree(tokenizer, self.tokenizer)
        kit.write(folder / "chats.jsonl", [{"messages": one} for one in (ONE_TURN, TWO_TURNS)])
        self.notes: list[str] = []

    def run(self, name: str, template: str, mask: Any) -> kit.Packed:
        tokenizer = {"path": str(self.tokenizer), "engine": "tokenizers", "chat_template": template}
        config = kit.configure(self.folder, "chats", out=str(self.folder / name), tokenizer=tokenizer, mask=mask)
        packed = kit.packed(config)
        self.notes = packed.notes
        return packed

    def found(self, name: str, template: str, mask: Any) -> list[str]:
        """What is said of turns that are not what a model would sample."""
        self.run(name, template, mask)
        return [one for one in self.notes if "of the assistant in the first rows" in one]


@pytest.fixture
def proved(tmp_path: Path, make_tokenizer: Callable[..., Path]) -> Proved:
    return Proved(tmp_path, make_tokenizer("masks"))


@pytest.mark.parametrize(
    ("policy", "template", "says"),
    [
        ("assistant", CLOSED, ""),
        ("all", COUNTING, ""),
        ("assistant", COUNTING, "of 3 turns of the assistant in the first rows: the text before 3 turns is not"),
        ("completion", COUNTING, "of 2 turns of the assistant in the first rows: the text before 2 turns is not"),
        ("assistant", UNCLOSED, "of 3 turns of the assistant in the first rows: no stop token ends 2 turns"),
        ("completion", UNCLOSED, "of 2 turns of the assistant in the first rows: no stop token ends 2 turns"),
    ],
)
def test_the_turns_of_the_first_rows_are_proved(proved: Proved, policy: str, template: str, says: str) -> None:
    for name in ("first", "again"):  # the look itself, and what the cache keeps of it
        said = proved.found(name, template, policy)
        assert len(said) == bool(says)
        assert not says or (said[0].startswith(says) and "chats.jsonl, line 1, message 2" in said[0])


def test_stops_of_generation_config(proved: Proved) -> None:
    """A stop that only generation_config.json names counts; one that it does not name is reported."""
    added = json.loads((proved.tokenizer / "tokenizer.json").read_text())["added_tokens"]
    ids = {one["content"]: one["id"] for one in added}
    path = proved.tokenizer / NAME
    path.write_text(json.dumps({"eos_token_id": [ids["<|im_end|>"], ids["<|im_start|>"]]}))
    assert not proved.found("named", CLOSED, "assistant")
    assert not [one for one in proved.notes if "would not stop" in one]
    path.write_text(json.dumps({"eos_token_id": ids["<|im_start|>"]}))
    assert not proved.found("other", CLOSED, "assistant"), "the template is believed"
    (said,) = [one for one in proved.notes if "would not stop" in one]
    assert f"add {ids['<|im_end|>']} to" in said


def test_a_stop_in_the_next_header_is_trained_where_it_stands(proved: Proved) -> None:
    """As literal texts: what is trained of both conversations, and what is counted and said."""
    decoder = load_decoder(proved.tokenizer)

    def trained(packed: kit.Packed) -> list[str]:
        labels = [[one for one in row["labels"] if one != IGNORE_INDEX] for row in packed.rows()]
        return sorted(decoder.text(one) for one in labels)

    assert trained(proved.run("own", UNCLOSED, "assistant")) == ["twosixsix"], "both conversations share a row"
    (said,) = [one for one in proved.notes if "of the assistant in the first rows" in one]
    assert "mask.stop=auto" in said
    own = proved.run("auto", UNCLOSED, {"policy": "assistant", "stop": "auto"})
    assert trained(own) == ["two<|im_start|>sixsix"]
    entry = own.ledger["chats"]
    assert [entry[name] for name in ("turns_trained", "turns_stop_next", "turns_without_stop")] == [3, 1, 2]
    closed = proved.run("closed", CLOSED, {"policy": "assistant", "stop": "auto"})
    assert trained(closed) == ["two<|im_end|>six<|im_end|>six<|im_end|>"], "nothing changes where turns end"


@pytest.mark.parametrize(
    ("content", "stops"),
    [
        (b'{"eos_token_id": 7}', (7,)),
        (b'{"eos_token_id": [7, 8, 7]}', (7, 8)),
        (b'{"eos_token_id": null}', ()),
        (b'{"eos_token_id": [7, "8"]}', ()),
        (b'{"eos_token_id": -1}', ()),
        (b'{"eos_token_id": %s}' % json.dumps(list(range(65))).encode(), ()),
        (b"\xff\xfe", ()),
        (b"[" * 200_000, ()),
        (b'{"eos_token_id": 7' + b" " * (1 << 20) + b"}", (7,)),
    ],
)
def test_a_generation_config_is_only_data(content: bytes, stops: tuple[int, ...]) -> None:
    assert generation_stops(None) == (), "there is none"
    assert generation_stops(content) == stops
