"""Tests from the examples in a statement."""

import json
from typing import Any

import pytest

from tests.bench.leetcode_examples import LeftOutError, calls_of

TWO_SUM = """Given nums and target, return indices.

Example 1:

Input: nums = [2,7,11,15], target = 9
Output: [0,1]
Explanation: Because nums[0] + nums[1] == 9.

Example 2:

Input: nums = [3,3], target = 6

Output: [0,1]

Example 3:

Input: nums = [[1,2]
[3]], target = 6
Output: [0,1]
"""


def row(question: str = TWO_SUM, **more: Any) -> dict[str, Any]:
    code = "class Solution:\n    def twoSum(self, nums, target):\n        return [0, 1]"
    return {"question": question, "starter_code": code.partition("return")[0], "solutions": json.dumps([code]), **more}


def test_examples_become_calls() -> None:
    expected = {"fn_name": "twoSum", "inputs": [[[2, 7, 11, 15], 9], [[3, 3], 6]], "outputs": [[0, 1], [0, 1]]}
    assert calls_of(row()) == expected
    assert calls_of(row(starter_code="")) == expected


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"solutions": ""}, "no Python solution"),
        ({"starter_code": "", "solutions": '["select 1"]'}, "no class"),
        ({"starter_code": "", "solutions": '["class LRUCache:\\n    def get(self): pass"]'}, "a class to design"),
        ({"starter_code": "class Solution:\n    def f(self, root: TreeNode):"}, "arguments are trees"),
        ({"question": "Input: a = b\nOutput: 3\n"}, "no example whose values are JSON"),
        ({"question": "Input: a = 1\nOutput: true, with more\n"}, "no example whose values are JSON"),
    ],
)
def test_rows_without_usable_examples_are_left_out(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(LeftOutError, match=why):
        calls_of(row(**changes))
