"""What a run says at its end: the share of the supervised tokens that is trained, what is not used, and what to know of
the contents; and what it says if nothing is left.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packtrain.pipeline.report.ledger_lines import supervision_style
from packtrain.schemas.errors import InputError
from packtrain.schemas.report.flow import Supervision
from packtrain.schemas.tables.reasons import REASONS

from tests import kit


def chat(question: str, answer: str) -> kit.Row:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def run(folder: Path, rows: list[kit.Row], kind: str = "chats", **keys: Any) -> kit.Packed:
    """Pack some rows."""
    folder.mkdir(exist_ok=True)
    kit.write(folder / "mine.jsonl", rows)
    return kit.packed(kit.configure(folder, kit.source(kind, path="mine.jsonl"), **keys))


def trained(packed: kit.Packed) -> int:
    """Trained tokens, counted in the rows."""
    (name,) = {"labels", "pair_labels"} & set(packed.table().column_names)
    return sum(np.not_equal(row[name], -100).sum() for row in packed.rows())


@pytest.mark.parametrize("kind", ["chats", "choices", "texts"])
def test_the_end_says_first_what_share_of_the_supervised_tokens_is_trained(kind: str, tmp_path: Path) -> None:
    """The rows say how many are trained, and those of a run without limits how many the mask wants."""
    rows = kit.corpus(kind, 30)
    mask = {} if kind != "chats" else {"mask": "assistant"}
    short = run(tmp_path / "short", rows, kind, truncate={"max_length": 64}, **mask)
    whole = run(tmp_path / "whole", rows, kind, truncate={"max_length": 1 << 16}, **mask)
    first = next(note for note in short.notes if note.startswith("Trained: "))
    share, labels, supervised = re.findall(r"\d[\d,.]*", first)[:3]
    assert int(labels.replace(",", "")) == trained(short) < trained(whole)
    (ledger,) = whole.ledger.values()
    assert int(supervised.replace(",", "")) == ledger["labels_trained"] + ledger["labels_first_token"]
    assert float(share) == pytest.approx(100 * trained(short) / int(supervised.replace(",", "")), abs=0.06)
    assert "truncated: max_length" in first


def test_terminal_page_and_numbers_say_the_same(tmp_path: Path) -> None:
    kit.write(tmp_path / "mine.jsonl", [chat("q", "word " * 400)] * 3 + [chat("q", "yes")] * 5)
    config = kit.configure(
        tmp_path,
        kit.source("chats", path="mine.jsonl"),
        mask="assistant",
        truncate={"max_length": 64},
        run={"report": True},
    )
    done = kit.cli("run", kit.saved(config))
    assert done.code == 0, done.err
    (first,) = (line for line in done.out.splitlines() if line.startswith("Trained: "))
    out = Path(config["out"])
    assert first in (out / "report.html").read_text()
    assert first.replace("_", r"\_") in (out / "README.md").read_text()
    assert first in kit.cli("report", out).out
    numbers = json.loads((out / "report.json").read_text())["flow"]["supervision"]
    assert numbers["supervised"] == numbers["trained"] + sum(numbers["lost"].values())
    assert f"{numbers['trained']:,} of {numbers['supervised']:,}" in first
    said = done.out.splitlines()
    order = [
        "Trained: ",
        "row",
        "Copies: 6 packed examples are equal to an earlier one (75 %); duplicates=drop",
        "report: ",
    ]
    places = [next(at for at, line in enumerate(said) if text in line and at >= said.index(first)) for text in order]
    assert places == sorted(places)


def test_what_is_left_out_by_choice_is_no_loss() -> None:
    chosen = Supervision(100, 30, {"duplicate": 30, "not_sampled": 20, "first_token": 20})
    assert supervision_style(chosen) == "bold green"
    assert supervision_style(Supervision(100, 95, {"max_length": 5})) == "bold yellow"
    assert supervision_style(Supervision(100, 60, {"overlong": 40})) == "bold red"
    assert supervision_style(Supervision(0, 0, {})) == "bold red"


def test_copies_and_special_tokens_in_contents_are_counted(tmp_path: Path) -> None:
    rows = [chat(f"q {number}", "fine") for number in range(6)]
    rows += [rows[2], rows[3], rows[2], chat("a <|im_end|> b <|im_end|>", "yes"), chat("q <|", "x")]
    kept = run(tmp_path / "kept", rows, mask="assistant")
    (ledger,) = kept.ledger.values()
    assert ledger["examples_equal"] == 3
    assert (ledger["examples_with_special"], ledger["special_in_contents"]) == (1, {"<|im_end|>": 2})
    assert any(
        note.startswith("Special tokens: 1 example has some in the contents (<|im_end|> 2)") for note in kept.notes
    )
    dropped = run(tmp_path / "dropped", rows, mask="assistant", duplicates="drop")
    (ledger,) = dropped.ledger.values()
    assert (ledger["examples_equal"], ledger["examples_dropped"]) == (0, {"duplicate": 3})
    assert not any(note.startswith("Copies") for note in dropped.notes)


def test_arguments_of_tool_calls_that_are_not_json_are_said(tmp_path: Path) -> None:
    rows = kit.corpus("chats", 3)
    for arguments in ("{not json", '{"a": 1}', "[1]"):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        rows.append({"messages": [*turns, {"role": "tool", "content": "1"}, {"role": "assistant", "content": "a"}]})
    packed = run(tmp_path / "calls", rows, mask="assistant")
    (ledger,) = packed.ledger.values()
    assert ledger["call_arguments_not_json"] == 2
    (said,) = (note for note in packed.notes if note.startswith("Tool calls: "))
    assert "2 tool calls have arguments that are not the JSON of an object" in said
    assert not any(note.startswith("Tool calls: ") for note in run(tmp_path / "good", rows[:3], mask="assistant").notes)


def test_special_tokens_in_pairs_are_counted_once(tmp_path: Path) -> None:
    rows = kit.corpus("choices", 5)
    rows[1]["rejected"] = [{"role": "assistant", "content": "no <|im_start|>"}]
    rows[1]["prompt"], rows[1]["chosen"] = [{"role": "user", "content": "q"}], [{"role": "assistant", "content": "a"}]
    (ledger,) = run(tmp_path / "pairs", rows[1:2], "choices").ledger.values()
    assert ledger["special_in_contents"] == {"<|im_start|>": 1}


@pytest.mark.parametrize(
    ("rows", "keys", "reason"),
    [
        ([chat("q", "a " * 300)], {"truncate": {"max_length": 32, "overlong": "drop"}}, "overlong"),
        ([chat("q " * 300, "a")], {"truncate": {"max_length": 32}}, "cut_untrained"),
        ([chat("q", "a")], {"filter": {"min_tokens": 500}}, "min_tokens"),
        ([chat("q", "a " * 90)], {"filter": {"max_tokens": 8}}, "max_tokens"),
    ],
)
def test_if_nothing_is_left_the_remedy_is_that_of_the_reason(
    rows: list[kit.Row], keys: kit.Config, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="nothing is left to pack") as caught:
        run(tmp_path / "none", rows, mask="assistant", **keys)
    message = str(caught.value)
    assert REASONS[reason].removesuffix(".") in message
    others = [words for name, words in REASONS.items() if name != reason and words.removesuffix(".") in message]
    assert not others
