"""Mask policies from the configuration to the shards: from the cache, counted, and refused where nothing is proved."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.cached_parts import open_parts
from packtrain.pipeline.dataset.decode import load_decoder, show_row
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.encode.task import load_encoder
from packtrain.pipeline.execute import template_watchdog as watchdog
from packtrain.pipeline.observer import Observer, Silent
from packtrain.pipeline.report.collect.rows.look import look_at
from packtrain.pipeline.report.collect.rows.shown import shown_rows
from packtrain.pipeline.report.draw.text_rows import rows_markup
from packtrain.pipeline.run.driver import run
from packtrain.schemas.errors import InputError, TemplateError, TokenizerError
from packtrain.schemas.manifest import Manifest
from packtrain.schemas.rows import IGNORE_INDEX
from rich.console import Console

from tests.support import warm

MakeTokenizer = Callable[..., Path]
ReadRows = Callable[..., list[dict[str, Any]]]

HIDING = (  # prints contents through `%`, so nothing can tell where they lie
    "{% for m in messages %}{{ '<|im_start|>%s\n%s!<|im_end|>\n' % (m.role, m.content) }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ROWS = [
    {
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
            {"role": "assistant", "content": "four"},
        ]
    },
    {"messages": [{"role": "user", "content": "five"}, {"role": "assistant", "content": "six"}]},
    {
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "wrong", "train": False},
            {"role": "user", "content": "three"},
            {"role": "assistant", "content": "right"},
        ]
    },
    {"messages": [{"role": "user", "content": "seven"}]},
]


class Packed:
    """Runs configurations over the rows above."""

    def __init__(self, folder: Path, tokenizer: Path, read_rows: ReadRows) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.read_rows = read_rows
        self.decoder = load_decoder(tokenizer)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def config(self, name: str, mask: Any, *, workers: int = 1, **tokenizer: Any) -> dict[str, Any]:
        return {
            "out": str(self.folder / name),
            "cache": str(self.folder / "cache"),
            "tokenizer": {"path": str(self.tokenizer), "engine": "tokenizers", **tokenizer},
            "sources": [{"name": "rows", "format": "messages", "path": str(self.folder / "rows.jsonl")}],
            "mask": mask,
            "truncate": {"max_length": 256},
            "pack": {"strategy": "none", "shuffle": False},
            "run": {"workers": workers, "report": False},
        }

    def run(self, name: str, mask: Any, *, observer: Observer | None = None, **more: Any) -> Manifest:
        return run(self.config(name, mask, **more), observer=observer)

    def trained(self, name: str) -> list[str]:
        """What is trained of each row, as text."""
        return [
            self.decoder.text([one for one in row["labels"] if one != IGNORE_INDEX])
            for row in self.read_rows(self.folder / name)
        ]


@pytest.fixture
def packed(tmp_path: Path, make_tokenizer: MakeTokenizer, read_rows: ReadRows) -> Packed:
    """With a byte-level tokenizer and a ChatML template."""
    return Packed(tmp_path, make_tokenizer("masks"), read_rows)


END = "<|im_end|>"


@pytest.mark.parametrize(
    ("mask", "trained", "turns", "endless"),
    [
        ("completion", [f"four{END}\n", f"six{END}\n", f"right{END}\n"], 3, 0),
        ("assistant", [f"two{END}four{END}", f"six{END}", f"right{END}"], 4, 0),
        ("last_assistant", [f"four{END}", f"six{END}", f"right{END}"], 3, 0),
        ({"policy": "assistant", "train_end": False}, ["twofour", "six", "right"], 4, 0),
        ({"policy": "completion", "train_end": False}, ["four\n", "six\n", "right\n"], 3, 0),
    ],
)
def test_a_policy_trains_what_it_names(packed: Packed, mask: Any, trained: list[str], turns: int, endless: int) -> None:
    manifest = packed.run("out", mask)
    assert sorted(packed.trained("out")) == sorted(trained)
    entry = manifest.ledger.sources["rows"]
    assert (entry.turns_trained, entry.turns_without_end) == (turns, endless)
    assert entry.examples_dropped == {"untrained": 1}  # the one in which nobody answers


def test_another_policy_costs_no_tokenization(packed: Packed) -> None:
    packed.run("first", "completion")
    parts = {path: path.stat().st_mtime_ns for path in (packed.folder / "cache" / "encoded").rglob("*.arrow")}
    assert parts
    for number, mask in enumerate(("assistant", "last_assistant", "all", {"policy": "assistant", "train_end": False})):
        packed.run(f"out-{number}", mask)
    again = {path: path.stat().st_mtime_ns for path in (packed.folder / "cache" / "encoded").rglob("*.arrow")}
    assert again == parts


# Writes thoughts of every turn, and calls.
THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.name + c.function.arguments | tojson + ']' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THOUGHTS: list[dict[str, Any]] = [
    {"role": "user", "content": "two and two"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "add",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
    },
    {"role": "tool", "content": "four"},
    {"role": "assistant", "content": "<think>done</think>It is four"},
]


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
def test_thoughts_and_calls_are_masked_from_the_cache(packed: Packed, mask: dict[str, str], trained: str) -> None:
    (packed.folder / "rows.jsonl").write_text(json.dumps({"messages": THOUGHTS}) + "\n")
    packed.run("first", "completion", chat_template=THINKING)
    parts = {path: path.stat().st_mtime_ns for path in (packed.folder / "cache" / "encoded").rglob("*.arrow")}
    packed.run("out", {"policy": "assistant", **mask}, chat_template=THINKING)
    assert packed.trained("out") == [trained]
    assert {path: path.stat().st_mtime_ns for path in (packed.folder / "cache" / "encoded").rglob("*.arrow")} == parts


def test_thoughts_and_calls_are_counted_and_shown(packed: Packed, program: Callable[..., Any]) -> None:
    """In the report's numbers, on its page, and in the colours of a terminal."""
    (packed.folder / "rows.jsonl").write_text(json.dumps({"messages": THOUGHTS}) + "\n")
    packed.run("out", {"policy": "assistant", "thoughts": "mask"}, chat_template=THINKING)
    dataset = open_dataset(packed.folder / "out")
    (row,) = packed.read_rows(packed.folder / "out")
    cached = open_parts(dataset)
    assert not isinstance(cached, str)
    kinds = cached.said_kinds(0, 0, row["input_ids"])
    assert cached.said_kinds(0, 0, row["input_ids"][1:]) == []
    texts = {
        kind: packed.decoder.text([one for one, name in zip(row["input_ids"], kinds, strict=True) if name == kind])
        for kind in ("thought", "tool call")
    }
    assert texts == {"thought": "<think>add<think>done", "tool call": '[add{"a": 2}]'}

    report = json.loads(program("report", packed.folder / "out", "--json").out)
    (source,) = report["training"]["sources"]
    counts = {one["kind"]: (one["tokens"], one["selected"]) for one in source["kinds"]}
    assert counts["thoughts"] == (kinds.count("thought"), 0)
    assert counts["tool calls"] == (kinds.count("tool call"),) * 2
    assert counts["ends of turns"] == (2, 2)
    assert sum(tokens for tokens, _ in counts.values()) == len(row["input_ids"])
    assert sum(chosen for _, chosen in counts.values()) == len([one for one in row["labels"] if one != IGNORE_INDEX])

    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=200)
    show_row(console, dataset, 0, "train", packed.decoder, False)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2;33m<think>add\x1b[0m" in shown
    assert '\x1b[1;34m[add{"a": 2}]\x1b[0m' in shown
    look = look_at(dataset, dataset.manifest.splits["train"])
    html = rows_markup(shown_rows(dataset, "train", look, 1, cut=False).rows)
    assert '<span class="thought"><span class="hidden">[thought: </span>&lt;think&gt;add<' in html
    assert '<mark><span class="hidden">[trained: </span><span class="call">' in html


def test_parts_with_flags_are_masked_and_shown(packed: Packed, program: Callable[..., Any]) -> None:
    """The space before the masked word is part of its token, so it goes with the later part."""
    parts = [{"type": "text", "text": "two "}, {"type": "text", "text": "three", "train": False}]
    answer = {"role": "assistant", "content": [*parts, {"type": "text", "text": " four"}]}
    (packed.folder / "rows.jsonl").write_text(json.dumps({"messages": [THOUGHTS[0], answer]}) + "\n")
    packed.run("out", "assistant")
    assert packed.trained("out") == [f"two four{END}"]
    cached = {path: path.stat().st_mtime_ns for path in (packed.folder / "cache" / "encoded").rglob("*.arrow")}
    packed.run("short", {"policy": "assistant", "train_end": False})
    assert packed.trained("short") == ["two four"]
    assert {path: path.stat().st_mtime_ns for path in (packed.folder / "cache" / "encoded").rglob("*.arrow")} == cached
    shown = program("inspect", packed.folder / "out", "--id", "rows/rows:1").out
    assert "masked: the data say train: false" in shown
    assert f"⟦two⟧ three⟦ four⟧⟦{END}⟧" in shown


def test_thoughts_that_cannot_be_located_are_rejected_only_where_that_matters(packed: Packed) -> None:
    hiding = THINKING.replace("'<think>' + m.reasoning_content + '</think>'", "'(%s)' % m.reasoning_content")
    chats = [{"messages": THOUGHTS}, {"messages": [THOUGHTS[0], {"role": "assistant", "content": "four"}]}]
    (packed.folder / "rows.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    everything = packed.run("all", "assistant", chat_template=hiding).ledger.sources["rows"]
    assert everything.examples_packed == {"train": 2}
    notes: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    mask = {"policy": "assistant", "thoughts": "mask"}
    manifest = packed.run("masked", mask, chat_template=hiding, observer=Notes())
    assert manifest.ledger.sources["rows"].examples_dropped == {"unproved_parts": 1}
    assert packed.trained("masked") == [f"four{END}"]
    (line,) = (packed.folder / "masked" / "rejects.jsonl").read_text().splitlines()
    reject = json.loads(line)
    assert (reject["line"], reject["reason"]) == (1, "unproved_parts")
    assert reject["detail"].endswith("message 2: its thought could not be followed into the text")
    assert any("cannot be located with certainty in turns of 1 conversation" in note for note in notes)
    with pytest.raises(InputError, match=r"line 1: .* mask: \{on_unproved: reject\}"):
        packed.run("error", {**mask, "on_unproved": "error"}, chat_template=hiding)


def test_what_is_not_proved_is_rejected_by_name(packed: Packed) -> None:
    manifest = packed.run("plain", "completion", chat_template=HIDING)
    assert manifest.ledger.sources["rows"].examples_dropped == {"untrained": 1}
    assert manifest.ledger.sources["rows"].rows_rejected == {}

    with pytest.raises(InputError, match="nothing is left to pack") as caught:
        packed.run("turns", "assistant", chat_template=HIDING)
    assert "unproved" in str(caught.value)
    lines = (packed.folder / "turns" / "rejects.jsonl").read_text().splitlines()
    rejects = [json.loads(line) for line in lines]
    assert [(one["line"], one["reason"]) for one in rejects] == [(1, "unproved"), (2, "unproved"), (3, "unproved")]
    assert "chat template" in rejects[0]["detail"]
    assert "drops its text, or rewrites all of it" in rejects[0]["detail"]


def test_or_refuses_the_run(packed: Packed) -> None:
    with pytest.raises(InputError, match=r"rows\.jsonl, line 1: .* mask: \{on_unproved: reject\}") as caught:
        packed.run("out", {"policy": "assistant", "on_unproved": "error"}, chat_template=HIDING)
    assert caught.value.exit_code == 2
    packed.run("fine", {"policy": "assistant", "on_unproved": "error"})


# Writes the system message before the last message, if that is the user's, and thoughts of the last turn only.
LATE = (
    "{% for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if loop.last and m.role == 'user' and messages[0].role == 'system' %}"
    "{{ messages[0].content + '\n' }}{% endif %}"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_what_a_row_loses_is_refused_or_allowed_and_counted(packed: Packed) -> None:
    asked = {"role": "user", "content": "one"}
    thought = {"role": "assistant", "content": "<think>hm</think>two"}
    rows = [
        [{"role": "system", "content": "Rule."}, asked, {"role": "assistant", "content": "two"}],
        [asked, thought, {"role": "user", "content": "three"}, {"role": "assistant", "content": "four"}],
        [{"role": "system", "content": "  "}, asked, {"role": "assistant", "content": "three"}],
    ]
    text = "".join(json.dumps({"messages": row}) + "\n" for row in rows)
    (packed.folder / "rows.jsonl").write_text(text)
    strict = packed.run("strict", "completion", chat_template=LATE).ledger.sources["rows"]
    assert strict.rows_rejected == {"lost_content": 1}
    assert strict.template_dropped == {"reasoning": 1}
    (line,) = (packed.folder / "strict" / "rejects.jsonl").read_text().splitlines()
    reject = json.loads(line)
    assert (reject["line"], reject["reason"]) == (1, "lost_content")
    assert "message 1: the chat template" in reject["detail"]
    assert "tokenizer.allow_lost: [system]" in reject["detail"]

    allowed = packed.run("allowed", "completion", chat_template=LATE, allow_lost=["system"])
    assert allowed.ledger.sources["rows"].rows_rejected == {}
    assert allowed.ledger.sources["rows"].template_dropped == {"reasoning": 1, "system": 1}
    again = packed.run("again", "completion", chat_template=LATE, allow_lost=["system"])
    assert again.hash == allowed.hash
    assert packed.run("strict", "completion", chat_template=LATE).ledger.sources["rows"] == strict


def test_variables_reach_the_template(packed: Packed) -> None:
    template = "{% for m in messages %}{{ m.role + flavour + m.content + '<|im_end|>' }}{% endfor %}"
    packed.run("sweet", "all", chat_template=template, variables={"flavour": " sweet "})
    sweet = packed.trained("sweet")
    packed.run("sour", "all", chat_template=template, variables={"flavour": " sour "})
    assert [text.replace("sweet", "sour") for text in sweet] == packed.trained("sour") != sweet


def test_a_template_by_name(tmp_path: Path, make_tokenizer: MakeTokenizer, read_rows: ReadRows) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for path in make_tokenizer("masks").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    plain = "{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": config["chat_template"]},
        {"name": "bare", "template": plain},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    packed = Packed(tmp_path, folder, read_rows)
    packed.run("bare", "all", chat_template="bare")
    heads = [row["input_ids"][0] for row in read_rows(tmp_path / "bare")]  # a first token has no label
    whole = [packed.decoder.text([head]) + text for head, text in zip(heads, packed.trained("bare"), strict=True)]
    assert f"five{END}six{END}" in whole
    packed.run("default", "assistant", chat_template="default")
    with pytest.raises(TokenizerError, match=r"cannot read 'other': .* its templates are bare, default"):
        packed.run("other", "all", chat_template="other")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_without_an_end_is_ended_by_the_kernel(packed: Packed, workers: int) -> None:
    """Comparing two lists of 2**40 leaves is one instruction, which no timer can interrupt: the run hung for hours."""
    doubled = "{% for i in range(40) %}{% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}"
    compared = "{% set a, b = namespace(x=1), namespace(x=1) %}" + doubled + "{{ a.x == b.x }}"
    endless = HIDING + "{% if messages[0].content == 'five' %}" + compared + "{% endif %}"
    config = packed.config("out", "completion", chat_template=endless, workers=workers)
    (packed.folder / "run.yaml").write_text(json.dumps(config))
    sooner = "from packtrain.pipeline.execute import template_watchdog as watch; watch.KILL_SECONDS = 2.0"
    process = warm.Process(["run", packed.folder / "run.yaml"], patch=sooner)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert re.search(r"chat template '.*' was stopped on .*row \d: one step took so long .*leave the row out", err)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_endless_template_stops_the_run(packed: Packed, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(watchdog, "SECONDS", 60.0)
    load_encoder.cache_clear()
    many = "{% for i in range(99999) %}"
    # A loop's steps are taken when it begins, so this is found at once; without limits it would go round 10^10 times.
    endless = "{{ messages[0].content }}" + many * 3 + "{% break %}" + "{% endfor %}" * 3
    with pytest.raises(TemplateError, match=r"jsonl, row 1: chat template .* was stopped: it takes more than"):
        packed.run("out", "completion", workers=workers, chat_template=endless)
    bad = "{% if messages[0].content == 'five' %}{{ 'a' * 10**10 }}{% endif %}" + HIDING
    manifest = packed.run("reject", "completion", workers=workers, chat_template=bad, on_limit="reject")
    assert manifest.ledger.sources["rows"].rows_rejected == {"template_limit": 1}


LATE_SYSTEM = (  # the system message stands before the last message only, and only if that is a question
    "{% set system = '' %}{% set turns = messages %}{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content %}{% set turns = messages[1:] %}{% endif %}"
    "{% for m in turns %}{% if m.role == 'user' %}[ASK]{% if loop.last and system %} {{ system }}\n\n{% endif %}"
    " {{ m.content }}[/ASK]{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)


def late_rows(system: bool) -> list[str]:
    """Ten conversations of two questions each. `name` keeps them from being traced."""
    rows = []
    for index in range(10):
        messages: list[dict[str, Any]] = [
            {"role": "user", "name": "u", "content": f"Question {index}?"},
            {"role": "assistant", "content": f"Answer {index}."},
            {"role": "user", "content": f"More {index}?"},
            {"role": "assistant", "content": f"Yes {index}."},
        ]
        rows.append(json.dumps({"messages": [{"role": "system", "content": f"Rule {index}."}] * system + messages}))
    return rows


def test_labels_do_not_depend_on_what_stands_beside_a_row(packed: Packed) -> None:
    trained: dict[str, dict[str, list[str]]] = {}
    late, plain = late_rows(True), late_rows(False)
    for name, rows in {"ab": plain + late, "ba": late + plain, "b": late, "a": plain}.items():
        (packed.folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
        manifest = packed.run(name, "completion", chat_template=LATE_SYSTEM, allow_lost=["system"])
        assert manifest.ledger.sources["rows"].prompts_rewritten == (0 if name == "a" else 10)
        trained[name] = {"completion": sorted(packed.trained(name))}
        packed.run(f"{name}-turns", "assistant", chat_template=LATE_SYSTEM, allow_lost=["system"])
        trained[name]["assistant"] = sorted(packed.trained(f"{name}-turns"))
    assert trained["ab"] == trained["ba"]
    # What precedes the answer is a space of the template's: it is trained where the prompt ends before it.
    assert trained["a"]["completion"] == [f" Yes {index}.{END}" for index in range(10)]
    assert {one.strip() for one in trained["b"]["completion"]} == {f"Yes {index}.{END}" for index in range(10)}
    assert trained["ab"]["completion"] == sorted(trained["a"]["completion"] + trained["b"]["completion"])
    assert trained["b"]["assistant"] == trained["a"]["assistant"]
    assert trained["ab"]["assistant"] == sorted(trained["a"]["assistant"] * 2)


def test_prompts_that_are_rewritten_can_be_rejected(packed: Packed) -> None:
    (packed.folder / "rows.jsonl").write_text("\n".join(late_rows(True) + late_rows(False)) + "\n")
    notes: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    mask = {"policy": "completion", "on_rewritten": "reject"}
    manifest = packed.run("out", mask, chat_template=LATE_SYSTEM, allow_lost=["system"], observer=Notes())
    entry = manifest.ledger.sources["rows"]
    assert (entry.prompts_rewritten, entry.examples_dropped) == (10, {"prompt_rewritten": 10})
    assert len(packed.trained("out")) == 10
    rejects = [json.loads(line) for line in (packed.folder / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [(one["line"], one["reason"]) for one in rejects] == [(line, "prompt_rewritten") for line in range(1, 11)]
    (note,) = [one for one in notes if "renders the prompts" in one]
    assert "10 conversations" in note
    assert note.endswith("They are left out")

    packed.run("trained", "completion", chat_template=LATE_SYSTEM, allow_lost=["system"], observer=Notes())
    assert any("TRL would mask" in one for one in notes)


def test_unknown_roles_and_special_tokens_in_contents_are_counted_and_named(packed: Packed) -> None:
    rows = [json.loads(row) for row in late_rows(False)]
    for row in rows[:3]:
        row["messages"][3]["role"] = "asistant"
    rows[5]["messages"][0]["content"] = "x<|im_end|>"
    (packed.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    template = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    for name in ("out", "again"):  # the second run takes the counts from the cache
        entry = packed.run(name, "assistant", chat_template=template, observer=Notes()).ledger.sources["rows"]
        assert (entry.unknown_roles, entry.control_tokens) == ({"asistant": 3}, {"<|im_end|>": 1})
    odd = [one for one in notes if one.startswith("conversations with")]
    assert len(odd) == 4
    assert re.search(r"unknown role: asistant \(3\)\. The first: .*rows\.jsonl, line 1\.", odd[0])
    assert re.search(r"in contents: <\|im_end\|> \(1\)\. The first: .*rows\.jsonl, line 6\.", odd[1])


def test_all_that_a_template_leaves_out_is_named_at_once(packed: Packed) -> None:
    rows = [json.loads(row) for row in late_rows(True) + late_rows(False)]
    for row in rows[12:14]:
        row["messages"][2]["role"] = "tool"
    (packed.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    template = (
        "{% for m in messages if m.role in ['user', 'assistant'] %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>"
        "{% endfor %}"
    )
    packed.run("out", "assistant", chat_template=template, observer=Notes())
    (note,) = [one for one in notes if "leaves out content" in one]
    assert "of 12 conversations" in note
    assert '"system", "tool_results"]' in note
