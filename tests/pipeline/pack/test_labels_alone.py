"""Labels of an example are those that its row gets alone: whatever else is packed, by how many, and after what."""

import json
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packtrain
import pytest
from packtrain.pipeline.encode.task import load_encoder
from packtrain.pipeline.inputs import scan as sources
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run.repair import repair
from packtrain.schemas.errors import InputError

CHATML = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + ('=' + m.name if m.name else '') + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LATE_SYSTEM = (  # the system message stands before the last message only, and only if that is a question
    "{% set system = '' %}{% set turns = messages %}{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content %}{% set turns = messages[1:] %}{% endif %}"
    "{% for m in turns %}{% if m.role == 'user' %}[ASK]{% if loop.last and system %} {{ system }}\n\n{% endif %}"
    " {{ m.content }}[/ASK]{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "f", "description": "finds it", "parameters": {"type": "object"}}}
WORDS = ("Why?", "Because.", "one two", "  spaced  ", "", "<think>\nso\n</think>\n\nYes.", "[/ASK] it <|im_end|>")


def conversation(chance: random.Random) -> dict[str, Any]:
    """A row of one to three questions; every so often with a system message, tools, names or empty contents."""
    messages: list[dict[str, Any]] = []
    if chance.random() < 0.5:
        messages.append({"role": "system", "content": "Be brief."})
    tools = chance.random() < 0.4
    for _ in range(chance.randrange(1, 4)):
        messages.append({"role": "user", "content": chance.choice(WORDS)})
        if chance.random() < 0.5:
            messages[-1]["name"] = "ann"
        if tools and chance.random() < 0.6:
            call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"x": "y"}}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "name": "f", "tool_call_id": "call00000", "content": "found"})
        messages.append({"role": "assistant", "content": chance.choice(WORDS)})
    messages[-1]["content"] = chance.choice(WORDS[:4])
    return {"messages": messages, **({"tools": [TOOL]} if tools else {})}


class Interruption(Silent):
    """Interrupts a run once some of its parts are encoded."""

    left = 3

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        """See `Observer`."""
        self.left -= done if tokens else 0
        if self.left <= 0:
            raise KeyboardInterrupt


class Packed:
    """Packs conversations with one tokenizer, and says what became of each."""

    def __init__(self, folder: Path, tokenizer: dict[str, Any], mask: str, pieces: Callable[..., Any]) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.mask = mask
        self.pieces = pieces

    def config(self, name: str, rows: list[str], workers: int = 1) -> dict[str, Any]:
        """A configuration that packs these rows into a folder of its own, with a cache of its own."""
        place = self.folder / name
        place.mkdir()
        (place / "rows.jsonl").write_text("".join(row + "\n" for row in rows))
        return {
            "out": str(place / "out"),
            "cache": str(place / "cache"),
            "tokenizer": self.tokenizer,
            "sources": [{"name": "chats", "format": "messages", "path": str(place / "rows.jsonl")}],
            "mask": self.mask,
            "truncate": {"max_length": 1024},
            "output": {"shard_bytes": 1 << 16},
            "run": {"workers": workers, "report": False},
        }

    def labels(self, config: dict[str, Any]) -> dict[int, list[Any]]:
        """[first token, tokens, labels] of every piece that was packed of each row, by its place in the input."""
        out: dict[int, list[Any]] = defaultdict(list)
        for name, *piece in self.pieces(config).elements():
            out[int(name.rpartition(":")[2]) - 1].append(piece)
        return {line: sorted(pieces) for line, pieces in out.items()}

    def alone(self, rows: list[str]) -> dict[int, list[Any]]:
        """The same of each row, packed by a run of its own that has met no other row."""
        out: dict[int, list[Any]] = {}
        for index, row in enumerate(rows):
            load_encoder.cache_clear()
            config = self.config(f"alone-{index}", [row])
            try:
                packtrain.run(config)
            except InputError:  # nothing of it can be packed
                continue
            labels = self.labels(config)
            if labels:
                out[index] = labels[0]
        return out


@pytest.mark.parametrize(
    ("template", "mask"), [(CHATML, "assistant"), (LATE_SYSTEM, "completion"), ("qwen3", "completion")]
)
def test_labels_are_those_of_the_row_alone(
    template: str,
    mask: str,
    tmp_path: Path,
    tiny_tokenizer: Path,
    request: pytest.FixtureRequest,
    packed: Callable[..., Any],
    sparing_repairs: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if template == "qwen3":
        real: Path = request.getfixturevalue("realdata")
        template = (real / "tokenizers" / "qwen3" / "chat_template.jinja").read_text()
    losable = ["system", "user", "assistant", "tool_calls", "tool_results", "tools"]
    tokenizer = {
        "path": str(tiny_tokenizer),
        "engine": "tokenizers",
        "chat_template": template,
        "allow_lost": losable,
    }
    packing = Packed(tmp_path, tokenizer, mask, packed)
    chance = random.Random(5)
    different = [json.dumps(conversation(chance)) for _ in range(10)]
    alone = packing.alone(different)
    assert len(alone) >= 8
    numbers = [*range(10)] * 6  # so that a memory of what came before could settle
    rows = [different[number] for number in numbers]

    def require_alone(config: dict[str, Any], order: list[int]) -> None:
        labels = packing.labels(config)
        expected = {line: alone[number] for line, number in enumerate(order) if number in alone}
        assert labels == expected

    in_order = packing.config("in-order", rows)
    packtrain.run(in_order)
    require_alone(in_order, numbers)

    monkeypatch.setattr(sources, "BLOCK_BYTES", 2_000)
    order = list(numbers)
    chance.shuffle(order)
    shuffled = packing.config("shuffled", [different[number] for number in order], workers=2)
    packtrain.run(shuffled)
    require_alone(shuffled, order)

    resumed = packing.config("resumed", rows)
    with pytest.raises(KeyboardInterrupt):
        packtrain.run(resumed, observer=Interruption())
    parts = list(Path(resumed["cache"]).glob("encoded/*/*.json"))
    load_encoder.cache_clear()  # as another process begins
    packtrain.run(resumed)
    assert 0 < len(parts) < len(list(Path(resumed["cache"]).glob("encoded/*/*.json")))
    require_alone(resumed, numbers)

    next(Path(shuffled["cache"]).glob("encoded/*/*.arrow")).unlink()
    next(Path(shuffled["out"]).glob("shards/**/*.arrow")).unlink()
    load_encoder.cache_clear()
    repair(shuffled["out"])
    require_alone(shuffled, order)
