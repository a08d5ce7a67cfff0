"""A few APPS problems with tests and solutions, and answers to them of which every verdict is known."""

import json
from pathlib import Path
from typing import Any

SUM = "a, b = map(int, input().split())\nprint(a + b)"
THIRD = "print(int(input()) / 3)"
DOUBLE = "class Solution:\n    def double(self, n: int) -> int:\n        return 2 * n"

PROBLEMS: list[dict[str, Any]] = [
    {
        "id": "sum", "difficulty": "introductory", "question": "Print the sum of two numbers.",
        "input_output": {"inputs": ["1 2\n", "5 5\n", ["-1 1"]], "outputs": ["3\n", ["10"], [0]]},
        "solutions": [SUM, "print(sum(map(int, input().split())))"],
    },
    {
        "id": "third", "difficulty": "interview", "question": "Print a third of a number.",
        "input_output": {"inputs": ["1\n", "2\n"], "outputs": ["0.333333\n", "0.666667\n"]},
        "solutions": [THIRD, "print(input())"],
    },
    {
        "id": "double", "difficulty": "introductory", "question": "Return twice a number.",
        "input_output": {"fn_name": "double", "inputs": [[1], [2]], "outputs": [[2], [4]]},
        "solutions": [DOUBLE, "def double(n):\n    return [2 * n]"],
    },
    {
        "id": "broken", "difficulty": "competition", "question": "Print the number.",
        "input_output": {"inputs": ["1\n"], "outputs": ["2\n"]},
        "solutions": ["print(input())"],
    },
    {"id": "untested", "difficulty": "competition", "question": "No tests.", "input_output": "", "solutions": ["1"]},
]  # fmt: skip
"""The fields of APPS, with objects where APPS has JSON text; `write_problems` writes both."""

ANSWERS: dict[str, list[tuple[str, str]]] = {
    "sum": [
        (f"So:\n```python\n{SUM}\n```\nThis adds them.", "passed"),
        (f"```python\n{SUM}\n```", "passed"),
        ("```python\nprint('3')\n```", "wrong"),
        ("I cannot do this.", "no code found"),
    ],
    "third": [
        (f"```\n{THIRD}\n```", "passed"),
        ("```python\nprint(int(input()) // 3)\n```", "wrong"),
        ("```python\nraise ValueError('no')\n```", "runtime error"),
        ("```python\nx = bytearray(1 << 34)\n```", "memory"),
    ],
    "double": [
        (DOUBLE, "passed"),
        ("```python\ndef double(n):\n    return [2 * n]\n```", "passed"),
        ("```python\ndef double(n):\n    print([2 * n])\n```", "wrong"),
        ("```python\nimport os\ndef double(n):\n    os._exit(0)\n```", "runtime error"),
    ],
    "broken": [("```python\nprint(input())\n```", "wrong")] * 4,
}
"""Problem → (answer, verdict), sample by sample."""


def write_problems(path: Path, *, text: bool = True) -> Path:
    """The problems as JSON lines.

    Args:
        text: with solutions and tests as JSON text, as APPS has them.
    """
    rows = []
    for one in PROBLEMS:
        fields = {key: json.dumps(one[key]) if text and one[key] else one[key] for key in ("solutions", "input_output")}
        rows.append({**one, **fields})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def sample_rows() -> list[dict[str, Any]]:
    """The answers as lines of a samples file."""
    return [
        {"id": problem["id"], "row": row, "sample": sample, "text": text, "finish_reason": "stop", "tokens": len(text)}
        for row, problem in enumerate(PROBLEMS)
        for sample, (text, _) in enumerate(ANSWERS.get(problem["id"], []))
    ]


def add_problems(folder: Path) -> None:
    """`train.jsonl` and `test.jsonl`, the problems, and `samples.jsonl`, the answers."""
    for name in ("train", "test"):
        write_problems(folder / f"{name}.jsonl")
    write_samples(folder / "samples.jsonl")


def write_samples(path: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    """A samples file, of the answers if nothing else is given."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows or sample_rows()), encoding="utf-8")
    return path
