"""APPS: programming problems with many solutions each. One example per (problem, solution) pair."""

import re
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, ClassVar

import msgspec

from ...schemas.errors import RowFilteredError, RowRejectedError
from ...schemas.rows import Example, Messages
from .base import Column, Columns, Format


class _Tests(msgspec.Struct):
    fn_name: Any = None
    inputs: msgspec.Raw = msgspec.Raw(b"null")


_decode_tests = msgspec.json.Decoder(_Tests).decode
_decode_solutions = msgspec.json.Decoder(list[str] | None).decode
_TICKS = re.compile("`{3,}")
_SMALL = 256


class AppsFormat(Format):
    """Problems in the public APPS fields.

    `sub` is the solution's index in the row's own list, -1 with `prompt_only`. `group` is the problem's id,
    or a digest of its question when it has none. Examples of a problem share their prompt: do not change it.
    """

    name = "apps"
    columns: ClassVar[Columns] = {
        "question": Column(str, required=True),
        "id": Column(int | str | None),
        "solutions": Column(Any),  # a list of texts, or its JSON; "" or null for none
        "input_output": Column(Any),  # an object, or its JSON; "" or null if there are no tests; may be megabytes long
        "difficulty": Column(str | None),
        "starter_code": Column(str | None),
    }
    values = "a text, beside `solutions` and `input_output` or `difficulty`"
    default_style = "chat"

    def fits(self, row: Mapping[str, Any]) -> bool:
        """See `Format.fits`."""
        known = isinstance(row.get("solutions"), str | list) and ("input_output" in row or "difficulty" in row)
        return known and super().fits(row)

    def examples(self, row: Any, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`. Rejects `empty`, `bad_solutions`; filters `difficulty`, `no_solution`.

        A solution of only whitespace is skipped; it is counted as `empty` if the row has other solutions.
        """
        options = self.options
        if not row.question or row.question.isspace():
            raise RowRejectedError("empty", "`question` is empty")
        if options.difficulties is not None and row.difficulty not in options.difficulties:
            raise RowFilteredError("difficulty")
        chat = self.style == "chat"
        if options.prompt_only:
            return [Example(line, -1, group_of(row), self._prompt(row), [] if chat else "", None)]
        kept = self._chosen(solutions_of(row), skipped)
        if not kept:
            raise RowFilteredError("no_solution")
        group, prompt = group_of(row), self._prompt(row)
        if not chat:
            return [Example(line, sub, group, prompt, text, None) for sub, text in kept]
        return [
            Example(line, sub, group, prompt, [{"role": "assistant", "content": fenced(text.rstrip())}], None)
            for sub, text in kept
        ]

    def _prompt(self, row: Any) -> Messages | str:
        if self.style == "chat":
            return [{"role": "user", "content": chat_prompt(row)}]
        return classic_prompt(row)

    def _chosen(self, solutions: list[str], skipped: Counter[str] | None) -> list[tuple[int, str]]:
        """(index in the row's list, solution) of the solutions to keep."""
        kept: list[tuple[int, str]] = []
        seen: set[str] = set()
        empty = duplicate = 0
        for sub, text in enumerate(solutions):
            # Trailing whitespace does not matter to a program, and the fence of `chat` drops it, so two solutions that
            # differ only there would be the same example. Leading whitespace is indentation and counts.
            content = text.rstrip()
            if not content:
                empty += 1
            elif self.options.dedupe and content in seen:
                duplicate += 1
            else:
                seen.add(content)
                kept.append((sub, text))
        limit = self.options.max_solutions
        over = 0 if limit is None else max(len(kept) - limit, 0)
        if skipped is not None and kept:
            for reason, count in (("empty", empty), ("duplicate", duplicate), ("over_limit", over)):
                if count:
                    skipped[reason] += count
        return kept[:limit]


def solutions_of(row: Any) -> list[str]:
    """The solutions of a row; [] if there are none.

    Raises:
        RowRejectedError: `bad_solutions`, if they are not a list of strings or its JSON text.
    """
    value = row.solutions
    if isinstance(value, str):
        if not value or value.isspace():
            return []
        try:
            return _decode_solutions(value) or []
        except (msgspec.DecodeError, RecursionError) as error:
            raise RowRejectedError("bad_solutions", f"`solutions` is not a JSON list of strings: {error}") from None
    if value is None:
        return []
    if not isinstance(value, list):
        raise RowRejectedError("bad_solutions", f"`solutions` must be a list, got {type(value).__name__}")
    for index, text in enumerate(value):
        if not isinstance(text, str):
            got = type(text).__name__
            raise RowRejectedError("bad_solutions", f"`solutions[{index}]` must be a string, got {got}")
    return value


def group_of(row: Any) -> str:
    """The problem's id as text, or 16 hexadecimal digits of a hash of its question."""
    if row.id is None or row.id == "":
        return blake2b(row.question.encode(), digest_size=8).hexdigest()
    return str(row.id)


def function_of(row: Any) -> str | None:
    """The function that the tests call; "" if they use standard input; None if the row does not say.

    Only the name is parsed, and only if `fn_name` occurs, so that long tests cost nothing. A row whose tests cannot be
    read counts as not saying. Problems with starter code but tests of plain input and output (many in APPS's test
    split) use standard input, as in APPS.
    """
    tests = row.input_output
    if not tests:
        return None
    if isinstance(tests, str):
        if len(tests) > _SMALL and "fn_name" not in tests:
            return ""
        try:
            found = _decode_tests(tests)
        except (msgspec.DecodeError, RecursionError):
            return None
        name, plain = found.fn_name, bytes(found.inputs) != b"null"
    elif isinstance(tests, dict):
        name, plain = tests.get("fn_name"), tests.get("inputs") is not None
    else:
        return None
    if isinstance(name, str) and name:
        return name
    return "" if plain else None


def fenced(code: str) -> str:
    """Code in a Markdown fence, longer than any run of backticks in it. `code` must not end in a newline."""
    # Searching for one character is several times faster than for three, and most programs have no backtick.
    longest = max(map(len, _TICKS.findall(code)), default=2) if "`" in code else 2
    fence = "`" * (longest + 1)
    return f"{fence}python\n{code}\n{fence}"


def chat_prompt(row: Any) -> str:
    """The user's turn: the question, the starter code if any, and how the program will be called."""
    parts = [row.question.rstrip().lstrip("\r\n")]
    starter = (row.starter_code or "").rstrip().lstrip("\r\n")
    if starter:
        parts.append(f"Starter code:\n\n{fenced(starter)}")
    function = function_of(row)
    if function:
        parts.append(f"Your Python code will be tested by calling `{function}`: return the answer, do not print it.")
    elif function == "":
        parts.append("Write a Python program that reads standard input and prints the answer to standard output.")
    elif starter:
        parts.append("Complete the starter code in Python.")
    else:
        parts.append("Solve this in Python.")
    return "\n\n".join(parts)


def classic_prompt(row: Any) -> str:
    """The prompt of the APPS paper. A row that does not say is call-based if it has starter code."""
    function = function_of(row)
    called = bool(row.starter_code) if function is None else bool(function)
    starter = f"\n{row.starter_code}" if row.starter_code else ""
    convention = "Use Call-Based format" if called else "Use Standard Input format"
    return f"\nQUESTION:\n{row.question}{starter}\n{convention}\nANSWER:\n"
