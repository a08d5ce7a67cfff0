"""Detects the format of a source from its first rows, or explains why it cannot.

1. For each format, count the rows that have its columns with values of the right kind.
2. A format that fits half of the rows is a candidate. A `text` column beside a conversation is not, because it is the
   rendered conversation.
3. A single candidate is the result. With none or several, the error says what was checked and how to choose.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ...schemas.config.source import FORMAT_KEYS
from ...schemas.errors import ConfigError, RowRejectedError
from ...schemas.units import plural
from .rowjson import decode_json
from .sharegpt import ROLES
from .tokenized import MASKS

Row: TypeAlias = Mapping[str, Any]
Keys: TypeAlias = Mapping[str, str]

_PAIRS = (
    ("question", "answer"),
    ("question", "response"),
    ("query", "response"),
    ("query", "answer"),
    ("instruction", "response"),
    ("problem", "solution"),
    ("input", "output"),
    ("source", "target"),
)
"""Columns that are probably a prompt and its completion; only suggested, never assumed."""
_CONVERSATIONS = ("messages", "conversations", "conversation")


@dataclass(frozen=True, slots=True)
class Detection:
    """The detected format."""

    format: str
    keys: dict[str, str]
    """Column names, given or found, as they are written in the configuration."""
    why: str
    """Why this format was chosen, to follow "because" in a sentence."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    format: str
    wanted: str
    fits: Callable[[Row], bool]
    keys: Keys


def detect(rows: Sequence[Any], keys: Keys | None = None) -> Detection:
    """The format of rows.

    Args:
        rows: the first decoded rows of a source; rows that are not objects fit no format.
        keys: column names that the user gave; only formats that take all of them are tried.

    Raises:
        ConfigError: no format fits, or several do.
    """
    given = dict(keys or {})
    candidates = [one for one in _candidates(given) if set(given) <= set(FORMAT_KEYS[one.format])]
    objects = [row for row in rows if isinstance(row, Mapping)]
    counts = [sum(map(one.fits, objects)) for one in candidates]
    found = [(one, count) for one, count in zip(candidates, counts, strict=True) if count and 2 * count >= len(rows)]
    if len({one.format for one, _ in found} - {"text", "tokenized"}):
        found = [(one, count) for one, count in found if one.format != "text"]
    if len(found) == 1:
        one, count = found[0]
        why = f"{_share(count, len(rows))} {'has' if count == 1 else 'have'} {one.wanted}"
        return Detection(one.format, {**given, **one.keys}, why)
    seen = _seen(objects, len(rows))
    if found:
        ways = "; or ".join(f"{_said(one)} ({_share(count, len(rows))}: {one.wanted})" for one, count in found)
        raise ConfigError(f"{seen} fit several formats; set the one that you mean: {ways}")
    looked = "".join(
        f"\n  {one.format}: {count:,} of {plural(len(rows), 'row has', 'rows have')} {one.wanted}"
        for one, count in zip(candidates, counts, strict=True)
    )
    raise ConfigError(f"{seen} fit no format. Looked for:{looked}\n{_hint(objects)}")


def _candidates(given: Keys) -> Iterator[_Candidate]:
    def column(name: str) -> str:
        return given.get(name, name)

    yield _Candidate("apps", "`question`, `solutions` and `input_output` or `difficulty`", _is_apps, {})
    for format, key, said in (("messages", "messages", "role"), ("sharegpt", "conversations", "from")):
        for name in (given[key],) if key in given else _CONVERSATIONS:
            wanted = f"`{name}`, a list of objects with `{said}`"
            yield _Candidate(format, wanted, partial(_has_turns, name, said), {} if name == key else {key: name})
    instruction, output = column("instruction"), column("output")
    yield _Candidate(
        "alpaca",
        f"`{instruction}` and `{output}`, texts",
        lambda row: isinstance(row.get(instruction), str) and isinstance(row.get(output), str),
        {},
    )
    prompt, completion = column("prompt"), column("completion")
    yield _Candidate(
        "prompt_completion",
        f"`{prompt}` and `{completion}`, both texts or both lists of messages",
        lambda row: _alike(row.get(prompt), row.get(completion)),
        {},
    )
    chosen, rejected = column("chosen"), column("rejected")

    def prefers(row: Row) -> bool:
        one, other, asked = row.get(chosen), row.get(rejected), row.get(prompt)
        # Two texts that begin alike share a prompt only if the user says so.
        return _alike(one, other) and (isinstance(asked, str | list) if isinstance(one, str) else True)

    wanted = f"`{chosen}` and `{rejected}`, lists of messages, or texts beside a `{prompt}`"
    yield _Candidate("preference", wanted, prefers, {})
    ids = column("ids") if "ids" in given else "input_ids"
    yield _Candidate("tokenized", f"`{ids}`, a list of integers", lambda row: _integers(row.get(ids)), {})
    text = column("text")
    yield _Candidate("text", f"`{text}`, a text", lambda row: isinstance(row.get(text), str), {})


def _is_apps(row: Row) -> bool:
    return (
        isinstance(row.get("question"), str)
        and isinstance(row.get("solutions"), str | list)
        and ("input_output" in row or "difficulty" in row)
    )


def _has_turns(name: str, said: str, row: Row) -> bool:
    return _turns(row.get(name)) == said


def _turns(value: Any) -> str:
    """`role` or `from`, whichever all turns of a conversation have; "" if neither."""
    if isinstance(value, str):  # JSON, as in a cell of CSV
        try:
            value = decode_json(value, "") if value.lstrip().startswith("[") else None
        except RowRejectedError:
            return ""
    if not isinstance(value, list) or not value or not all(isinstance(one, Mapping) for one in value):
        return ""
    if all("from" in one for one in value):
        return "from"
    if not all("role" in one for one in value):
        return ""
    names = {str(one["role"]).strip().lower() for one in value}
    # Role names of one format under the key of the other; no template has a role called human.
    return "from" if names & {"human", "gpt", "chatgpt", "function_call"} and names <= set(ROLES) else "role"


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return True
    return all(isinstance(value, list | Mapping) and bool(value) for value in (one, other)) and _speaks(one)


def _speaks(value: Any) -> bool:
    messages = [value] if isinstance(value, Mapping) else value
    return all(isinstance(one, Mapping) and ("role" in one or "from" in one) for one in messages)


def _integers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _share(count: int, rows: int) -> str:
    return f"{'all' if count == rows else f'{count:,}'} of the first {rows:,} rows" if rows > 1 else "the only row"


def _seen(objects: Sequence[Row], rows: int) -> str:
    """The rows that were checked, as the subject of a sentence."""
    columns: Counter[str] = Counter()
    kinds: dict[str, str] = {}
    for row in objects:
        for name, value in row.items():
            columns[name] += 1
            kinds.setdefault(name, _kind(value))
    if not columns:
        return f"the first {rows:,} rows, none of which is an object with columns,"
    names = [
        f"`{name}` ({kinds[name]}{'' if count == rows else f', in {count:,}'})"
        for name, count in columns.most_common(12)
    ]
    more = ", …" if len(columns) > 12 else ""
    return f"the first {plural(rows, 'row')}, with {', '.join(names)}{more},"


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {_kind(value[0])}s" if value else "empty list"
    kinds = {str: "text", bool: "true or false", int: "integer", float: "number", type(None): "null"}
    return kinds.get(type(value), "object")


def _said(one: _Candidate) -> str:
    keys = ", ".join(f"{key}: {name}" for key, name in one.keys.items())
    return f"format: {one.format}{f', keys: {{{keys}}}' if keys else ''}"


def _hint(objects: Sequence[Row]) -> str:
    """How to configure the format."""
    columns = {name for row in objects for name in row}
    texts = {name for row in objects for name, value in row.items() if isinstance(value, str)}
    if {"chosen", "rejected"} <= columns:
        asked = next((name for name in ("question", "query", "instruction", "input") if name in texts), "question")
        return (
            f"Name the column of the prompt (format: preference, keys: {{prompt: {asked}}}); or set only format: "
            "preference if `chosen` and `rejected` both begin with the prompt"
        )
    if masks := columns & set(MASKS):
        return f"`{min(masks)}` is there, but `input_ids` is not: name the column of the ids (keys: {{ids: …}})"
    for asked, answer in _PAIRS:
        if {asked, answer} <= texts:
            return (
                f"If `{asked}` and `{answer}` are a prompt and its completion: format: prompt_completion, "
                f"keys: {{prompt: {asked}, completion: {answer}}}, style: chat for two turns or plain for one text"
            )
    if len(texts) == 1:
        return f"If `{min(texts)}` is the text: format: text, keys: {{text: {min(texts)}}}"
    return (
        "Say format, and keys for columns of other names, such as format: prompt_completion, "
        "keys: {prompt: question, completion: answer} (as options: --set sources.0.format=prompt_completion --set "
        "sources.0.keys.prompt=question --set sources.0.keys.completion=answer); or read the rows yourself with "
        "format: python:module:function"
    )
