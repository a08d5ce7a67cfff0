"""What became of a program, and by which rule its output was accepted."""

from enum import StrEnum


class Verdict(StrEnum):
    """What became of one sample. The first test that failed decides."""

    passed = "passed"
    """All tests passed."""
    wrong = "wrong"
    """The program ended, and its output or result is not what is expected."""
    runtime_error = "runtime error"
    """An exception, or an exit code other than 0."""
    timeout = "timeout"
    memory = "memory"
    output_limit = "output limit"
    no_code = "no code found"
    """The answer contains no program; nothing ran."""


class Rule(StrEnum):
    """The rule that accepted an output, from the strictest to the loosest, for text and for values."""

    exact = "exact"
    """The same lines, apart from whitespace at the ends of lines and blank lines at the end."""
    tokens = "tokens"
    """The same words in the same order, however they are spaced."""
    numbers = "numbers"
    """As `tokens`, and numbers are close where the expected one has a decimal point."""
    value = "value"
    """The value that the call returned equals the expected one; tuples count as lists."""
    close_value = "close value"
    """As `value`, and numbers are close where the expected one has a decimal point."""
    wrapped = "wrapped"
    """The expected value is a list of one element, as in all tests of its problem; the call returned the element."""


_LOOSENESS = {rule: at for at, rule in enumerate(Rule)}


def loosest(one: Rule | None, other: Rule) -> Rule:
    """The looser of two rules; what a sample needed in all its tests."""
    return other if one is None or _LOOSENESS[other] > _LOOSENESS[one] else one
