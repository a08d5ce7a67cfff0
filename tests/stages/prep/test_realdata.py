"""Whole public data sets go through; rows are counted again here with the json module alone."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from packtrain.stages.prep import Options, PreparedBlock, make_format, public_row

ROOT = os.environ.get("PACKTRAIN_REALDATA")
pytestmark = pytest.mark.skipif(not ROOT, reason="PACKTRAIN_REALDATA names no folder")


def lines(path: str) -> list[tuple[int, bytes]]:
    return list(enumerate((Path(ROOT or "") / path).read_bytes().splitlines(keepends=True), start=1))


def rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for _, line in lines(path)]


def closes(done: PreparedBlock, path: str) -> None:
    assert done.rejects == []
    assert done.blank == 0
    assert done.rows == len(lines(path)) > 0
    assert done.rows == done.filtered.total() + len({e.line for e in done.examples})


@pytest.mark.parametrize("style", ["chat", "classic"])
@pytest.mark.parametrize(
    ("path", "solutions", "examples", "unsolved"),
    [
        ("apps/train.jsonl", 2331, 2266, 0),
        ("apps/test.jsonl", 79, 79, 401),
        ("apps/leetcode_apps_schema.jsonl", 4263, 4046, 546),
    ],
)
def test_apps(path: str, solutions: int, examples: int, unsolved: int, style: Any) -> None:
    done = make_format("apps", Options(style=style)).prepare(lines(path))
    closes(done, path)
    lists = [json.loads(row["solutions"] or "[]") for row in rows(path)]
    contents = [[text.rstrip() for text in each if text.strip()] for each in lists]
    assert sum(map(len, lists)) == solutions
    assert len(done.examples) == examples == sum(len(set(each)) for each in contents)
    assert done.filtered["no_solution"] == unsolved == sum(not each for each in contents)
    assert done.skipped["duplicate"] == sum(len(each) - len(set(each)) for each in contents)
    by_line = dict(enumerate(zip(rows(path), lists, strict=True), start=1))
    for example in done.examples:
        row, solved = by_line[example.line]
        assert example.group == str(row["id"])
        prompt, completion = example.prompt, example.completion
        if style == "classic":
            assert isinstance(prompt, str)
            assert row["question"] in prompt
            assert completion == solved[example.sub]
        else:
            assert isinstance(prompt, list)
            assert isinstance(completion, list)
            assert row["question"].strip() in prompt[0]["content"]
            assert completion[0]["content"] == f"```python\n{solved[example.sub].rstrip()}\n```"


@pytest.mark.parametrize("path", ["apps/train.jsonl", "apps/test.jsonl", "apps/leetcode_apps_schema.jsonl"])
def test_apps_prompts(path: str) -> None:
    done = make_format("apps", Options(prompt_only=True)).prepare(lines(path))
    closes(done, path)
    assert len(done.examples) == done.rows
    said: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for example, row in zip(done.examples, rows(path), strict=True):
        assert isinstance(example.prompt, list)
        content = example.prompt[0]["content"]
        assert content.startswith(row["question"].rstrip())
        assert ("Starter code:\n\n```python\n" in content) == bool(row["starter_code"].strip())
        last = content.rsplit("\n\n", 1)[1]
        tests = json.loads(row["input_output"] or "{}")
        said["call" if "by calling" in last else "input" if "standard input" in last else "untold"] += 1
        expected["call" if "fn_name" in tests else "input" if tests else "untold"] += 1
        if "fn_name" in tests:
            assert f"`{tests['fn_name']}`" in last
    assert said == expected


def test_apps_difficulties() -> None:
    options = Options(difficulties=("introductory",), max_solutions=1)
    done = make_format("apps", options).prepare(lines("apps/train.jsonl"))
    closes(done, "apps/train.jsonl")
    assert (len(done.examples), done.filtered) == (51, {"difficulty": 102})


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("chat/gsm8k_train.jsonl", 7473),
        ("chat/oasst_en100_paths.jsonl", 625),
        ("chat/sgd_dev.jsonl", 2098),
        ("chat/tau_bench_gpt4o_airline.jsonl", 200),
        ("longdoc/qmsum_meeting_qa.jsonl", 134),
    ],
)
def test_messages(path: str, count: int) -> None:
    made = make_format("messages")
    done = made.prepare(lines(path))
    closes(done, path)
    assert len(done.examples) == count
    for example, row in zip(done.examples, rows(path), strict=True):
        public = public_row(example, made.form)
        assert public == {key: row[key] for key in ("messages", "tools") if key in row}
        assert bool(example.completion) == (row["messages"][-1]["role"] == "assistant")
    again = made.prepare_rows((line, json.loads(data)) for line, data in lines(path))
    assert len(again.examples) == count
    assert again.rejects == []


def test_text() -> None:
    done = make_format("text").prepare(lines("longdoc/peps.jsonl"))
    closes(done, "longdoc/peps.jsonl")
    assert [e.text for e in done.examples] == [row["text"] for row in rows("longdoc/peps.jsonl")]
    assert len(done.examples) == 610
