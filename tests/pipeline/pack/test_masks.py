"""What each mask trains, spelt out on a few conversations; what cannot be located is left out by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from packtrain import PacktrainError

from tests import kit
from tests.kit import CHATML, Config, Packed, Row

END = "<|im_end|>"
ASKED = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
HIDING = (  # prints contents through `%`, so nothing can tell where they lie
    "{% for m in messages %}{{ '<|im_start|>%s\n%s!<|im_end|>\n' % (m.role, m.content) }}{% endfor %}" + ASKED
)
THINKING = (  # writes thoughts of every turn, and calls
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.name + c.function.arguments | tojson + ']' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}" + ASKED
)


def each(content: str) -> str:
    """A template that writes the content of every message in this way."""
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        f"{content}{{{{ '<|im_end|>\n' }}}}{{% endfor %}}{ASKED}"
    )


def said(*texts: str, **keys: Any) -> Row:
    """A conversation of user and assistant in turn; `keys` go to the second message."""
    roles = ("user", "assistant")
    messages: list[Row] = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    if keys:
        messages[1] |= keys
    return {"messages": messages}


ROWS = [
    said("one", "two", "three", "four"),
    said("five", "six"),
    said("one", "wrong", "three", "right", train=False),
    said("seven"),
]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
THOUGHTS: list[Row] = [
    {"role": "user", "content": "two and two"},
    {"role": "assistant", "content": "", "reasoning_content": "add", "tool_calls": [CALL]},
    {"role": "tool", "content": "four"},
    {"role": "assistant", "content": "<think>done</think>It is four"},
]


class Runs:
    """Packs rows one a document and in their order, and shows what is trained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kit.tokenizer(folder / "tokenizer")

    def __call__(self, name: str, rows: list[Row], mask: Any, template: str = CHATML, **tokenizer: Any) -> Packed:
        kit.write(self.folder / "chats.jsonl", rows)
        config: Config = kit.configure(
            self.folder,
            kit.source("chats"),
            out=str(self.folder / name),
            tokenizer={"path": str(self.folder / "tokenizer"), "chat_template": template, **tokenizer},
            mask=mask,
            pack={"strategy": "none", "shuffle": False},
        )
        return kit.packed(config)

    def trained(self, packed: Packed) -> list[str]:
        """What is trained of each row, as text."""
        from tokenizers import Tokenizer

        read = Tokenizer.from_file(str(self.folder / "tokenizer" / "tokenizer.json"))
        labels = ([label for label in row["labels"] if label >= 0] for row in packed.rows())
        return [read.decode(one, skip_special_tokens=False) for one in labels]

    def parts(self) -> dict[Path, int]:
        """The tables of the cache, each with its inode: one that is written again has another."""
        return {path: path.stat().st_ino for path in (self.folder / "cache").rglob("*.arrow")}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """In an empty folder."""
    return Runs(tmp_path)


@pytest.mark.parametrize(
    ("mask", "trained", "turns"),
    [
        ("completion", [f"four{END}\n", f"six{END}\n", f"right{END}\n"], 3),
        ("assistant", [f"two{END}four{END}", f"six{END}", f"right{END}"], 4),
        ("last_assistant", [f"four{END}", f"six{END}", f"right{END}"], 3),
        ({"policy": "assistant", "train_end": False}, ["twofour", "six", "right"], 4),
        ({"policy": "completion", "train_end": False}, ["four\n", "six\n", "right\n"], 3),
    ],
)
def test_a_policy_trains_what_it_names(runs: Runs, mask: Any, trained: list[str], turns: int) -> None:
    packed = runs("out", ROWS, mask)
    assert runs.trained(packed) == trained
    ledger = packed.ledger["chats"]
    assert (ledger["turns_trained"], ledger["turns_without_stop"]) == (turns, 0)
    assert ledger["examples_dropped"] == {"untrained": 1}  # the one in which nobody answers


@pytest.mark.parametrize(
    ("mask", "trained"),
    [
        ({}, f'<think>add</think>[add{{"a": 2}}]{END}<think>done</think>It is four{END}'),
        ({"thoughts": "mask"}, f'</think>[add{{"a": 2}}]{END}</think>It is four{END}'),
        ({"thoughts": "last"}, f'</think>[add{{"a": 2}}]{END}<think>done</think>It is four{END}'),
        ({"tool_calls": "mask"}, f"<think>add</think>{END}<think>done</think>It is four{END}"),
        ({"thoughts": "mask", "tool_calls": "mask"}, f"</think>{END}</think>It is four{END}"),
        ({"thoughts": "mask", "policy": "last_assistant"}, f"</think>It is four{END}"),
        ({"thoughts": "mask", "policy": "completion"}, f"</think>It is four{END}\n"),
    ],
)
def test_thoughts_and_calls_are_masked_from_the_cache(runs: Runs, mask: Row, trained: str) -> None:
    runs("first", [{"messages": THOUGHTS}], "completion", THINKING)
    parts = runs.parts()
    assert parts
    packed = runs("out", [{"messages": THOUGHTS}], {"policy": "assistant", **mask}, THINKING)
    assert runs.trained(packed) == [trained]
    assert runs.parts() == parts


def test_thoughts_that_cannot_be_located_are_rejected_only_where_that_matters(runs: Runs) -> None:
    hiding = THINKING.replace("'<think>' + m.reasoning_content + '</think>'", "'(%s)' % m.reasoning_content")
    rows = [{"messages": THOUGHTS}, said("two and two", "four")]
    assert runs("all", rows, "completion", hiding).ledger["chats"]["examples_packed"] == {"train": 2}
    packed = runs("masked", rows, {"thoughts": "mask"}, hiding)
    assert packed.ledger["chats"]["examples_dropped"] == {"unproved": 1}
    assert runs.trained(packed) == [f"four{END}\n"]
    assert [(one["line"], one["reason"]) for one in packed.rejects()] == [(1, "unproved")]


ANSWERS = "{{ m.content%s if m.role == 'assistant' else m.content }}"
LINES = said("one two", "alpha\nbeta gamma", "r", "delta")
AGAIN = each("{{ m.content }}").replace(ASKED, "{{ '<|im_start|>system\nEnd: ' + messages[-1].content }}" + ASKED)
SUMMARY = "{{ '<|im_start|>system\n' }}{% for m in messages %}{{ m.content + ';' }}{% endfor %}{{ '<|im_end|>\n' }}"


@pytest.mark.parametrize(
    ("template", "row", "reason"),
    [
        (each(ANSWERS % " | indent(2)"), LINES, "lost_content"),
        (each(ANSWERS % " | indent(2)"), said("r", "delta", "one", "alpha\nbeta gamma"), "lost_content"),
        (AGAIN, said("one two", "alpha beta"), "unproved"),
        (SUMMARY + each("{{ m.content }}"), said("one two", "alpha beta"), "unproved"),
        (each(ANSWERS % ".split('</think>')[-1]"), said("q", "Write <think> first and </think> then."), "lost_content"),
        (each(ANSWERS % ".split('</think>')[-1]"), said("q", "<think>a</think>b <think>c</think>d"), "lost_content"),
        (each(ANSWERS % "[:4]"), said("q", "alpha beta"), "lost_content"),
    ],
)
def test_a_turn_whose_words_are_not_whole_and_in_one_place_is_left_out(
    runs: Runs, template: str, row: Row, reason: str
) -> None:
    with pytest.raises(PacktrainError):
        runs("out", [row], "assistant", template)
    rejects = [json.loads(line) for line in (runs.folder / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [(one["line"], one["reason"]) for one in rejects] == [(1, reason)]


def test_a_completion_begins_after_its_header(runs: Runs) -> None:
    """Also where there is no prompt. Where the template lists all contents before, that is not certain."""
    with pytest.raises(PacktrainError):
        runs("listed", [said("one two", "alpha beta")], "completion", SUMMARY + each("{{ m.content }}"))
    alone = {"messages": [{"role": "assistant", "content": "Four."}]}
    assert runs.trained(runs("alone", [alone], "completion")) == [f"Four.{END}\n"]


def test_turns_that_cannot_be_located_are_rejected(runs: Runs) -> None:
    assert runs("plain", ROWS, "completion", HIDING).ledger["chats"]["examples_dropped"] == {"untrained": 1}
    with pytest.raises(PacktrainError):
        runs("turns", ROWS, "assistant", HIDING)
    rejects = [json.loads(line) for line in (runs.folder / "turns" / "rejects.jsonl").read_text().splitlines()]
    assert [(one["line"], one["reason"]) for one in rejects] == [(1, "unproved"), (2, "unproved"), (3, "unproved")]


def test_a_source_whose_mask_needs_no_turns_keeps_what_is_not_located(runs: Runs) -> None:
    for name in ("a", "b"):
        kit.write(runs.folder / f"{name}.jsonl", ROWS)
    config = kit.configure(
        runs.folder,
        {"name": "a", "path": "a.jsonl"},
        {"name": "b", "path": "b.jsonl", "mask": "completion"},
        tokenizer={"path": str(runs.folder / "tokenizer"), "chat_template": HIDING},
        mask="assistant",
    )
    packed = kit.packed(config)
    assert packed.ledger["a"]["examples_dropped"] == {"unproved": 3, "untrained": 1}
    assert packed.ledger["b"]["examples_dropped"] == {"untrained": 1}
    assert [(one["source"], one["line"]) for one in packed.rejects()] == [("a", 1), ("a", 2), ("a", 3)]
    changes = ("--set", "sources.0.mask.policy=all", "--set", "sources.1.mask.stop=auto", "--out", runs.folder / "set")
    assert kit.cli("run", kit.saved(config), *map(str, changes)).code == 0
    plan = Packed(runs.folder / "set").record["plan"]["config"]
    masks = [(one["mask"]["policy"], one["mask"]["stop"]) for one in plan["sources"]]
    assert (plan["mask"]["policy"], masks) == ("assistant", [("all", "turn"), ("completion", "auto")])


def test_unknown_roles_are_counted(runs: Runs) -> None:
    rows = [said(f"Question {n}?", f"Answer {n}.", f"More {n}?", f"Yes {n}.") for n in range(10)]
    for row in rows[:3]:
        row["messages"][3]["role"] = "asistant"
    template = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    for name in ("out", "again"):  # the second run takes the counts from the cache
        ledger = runs(name, rows, "assistant", template).ledger["chats"]
        assert ledger["unknown_roles"] == {"asistant": 3}
