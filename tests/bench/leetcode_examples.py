"""Tests for LeetCode problems in the fields of APPS, made from the examples in their statements.

    python tests/bench/leetcode_examples.py leetcode_apps_schema.jsonl leetcode_tests.jsonl
    packtrain eval-apps --data leetcode_tests.jsonl --references --out calibrated

A statement shows calls as `Input: nums = [2,7], target = 9` and `Output: [0,1]`. An example is used if all values are
JSON. Rows without such an example are left out, and counted by reason.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

_EXAMPLE = re.compile(
    r"^[ \t]*Input:?[ \t]*(?P<input>.+?)\n+[ \t]*Output:?[ \t]*(?P<output>[^\n]+)$", re.MULTILINE | re.DOTALL
)
_ARGUMENT = re.compile(r"\s*[A-Za-z_]\w*\s*=\s*")
_METHOD = re.compile(r"^class Solution\b.*?^    def (\w+)\(", re.MULTILINE | re.DOTALL)
_NODES = re.compile(r"\b(TreeNode|ListNode|Node|NestedInteger|ImmutableListNode|MountainArray|BinaryMatrix|Employee)\b")
_decode = json.JSONDecoder().raw_decode


class LeftOutError(Exception):
    """Says why a row gives no tests."""


def calls_of(row: dict[str, Any]) -> dict[str, Any]:
    """The tests of a row, as `input_output` has them.

    Raises:
        LeftOutError: there are none.
    """
    solutions = json.loads(row["solutions"]) if row["solutions"] else []
    if not solutions:
        raise LeftOutError("no Python solution")
    method = _METHOD.search(row["starter_code"] or "") or _METHOD.search(solutions[0])
    if method is None or method[1] == "__init__":
        raise LeftOutError("a class to design" if "class " in solutions[0] else "no class: SQL, pandas or a shell")
    objects = set(_NODES.findall(row["starter_code"] + solutions[0]))
    if objects - set(re.findall(r"^ *class (\w+)", solutions[0], re.MULTILINE)):
        raise LeftOutError("arguments are trees, lists of nodes or other objects")
    inputs, outputs = [], []
    for example in _EXAMPLE.finditer(row["question"]):
        try:
            inputs.append(_arguments(example["input"]))
            outputs.append(_whole(example["output"]))
        except ValueError:
            del inputs[len(outputs) :]
    if not inputs:
        raise LeftOutError("no example whose values are JSON")
    return {"fn_name": method[1], "inputs": inputs, "outputs": outputs}


def _arguments(text: str) -> list[Any]:
    """`nums = [2,7], target = 9` as [[2, 7], 9]."""
    values: list[Any] = []
    at = 0
    while at < len(text):
        name = _ARGUMENT.match(text, at)
        if name is None:
            raise ValueError(text)
        value, at = _decode(text, name.end())
        values.append(value)
        rest = re.compile(r"\s*(,|$)").match(text, at)
        if rest is None:
            raise ValueError(text)
        at = rest.end()
    return values


def _whole(text: str) -> Any:
    value, end = _decode(text.strip())
    if text.strip()[end:]:
        raise ValueError(text)
    return value


def main(source: Path, target: Path) -> None:
    """Write the rows that have tests, and print how many have none, by reason."""
    left_out: Counter[str] = Counter()
    rows = tests = 0
    with source.open(encoding="utf-8") as lines, target.open("w", encoding="utf-8") as out:
        for line in lines:
            row = json.loads(line)
            try:
                found = calls_of(row)
            except LeftOutError as error:
                left_out[str(error)] += 1
                continue
            rows += 1
            tests += len(found["inputs"])
            out.write(json.dumps({**row, "input_output": json.dumps(found)}) + "\n")
    print(f"{rows:,} rows with {tests:,} tests")
    for reason, count in left_out.most_common():
        print(f"left out: {reason}: {count:,}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
