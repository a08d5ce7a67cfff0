"""The texts of an evaluation row that must not be in training data: what it asks, and the answers it expects.

Evaluation sets have many forms, and only a few of them could be trained on. So texts are found by the names of columns,
whatever else a row holds; tests, ids and starter code are left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...schemas.jsontext import parse_json

PROMPT, ANSWER = "prompt", "answer"
PROMPTS = ("question", "problem", "prompt", "query", "instruction", "input", "text", "content")
"""Columns that may hold what is asked. `input` belongs to `instruction`; of the others the first one counts."""
ANSWERS = (
    "solutions", "solution", "answer", "answers", "completion", "response", "output", "canonical_solution", "chosen",
)  # fmt: skip
"""Columns that may hold what is expected; all of them count."""
CONVERSATIONS = ("messages", "conversations", "conversation")
_IDS = ("id", "task_id", "problem_id", "question_id", "uid", "name", "slug")
_SILENT = ("system", "developer", "tool")
_ASSISTANT = ("assistant", "gpt", "chatgpt", "model")


class EvaluationText(NamedTuple):
    """One text of an evaluation row."""

    kind: str
    """PROMPT or ANSWER."""
    text: str


def evaluation_texts(row: Mapping[str, Any]) -> list[EvaluationText]:
    """The texts of a row; none if it has no known column."""
    out = []
    conversation = next((row[name] for name in CONVERSATIONS if row.get(name)), None)
    if conversation is not None:
        out += _spoken(conversation)
    names = [name for name in PROMPTS if row.get(name)]
    for name in names[: 0 if out else 1]:
        asked = "\n".join(_said(row[name], answers=False))
        if name == "instruction" and "input" in names:
            asked += "\n" + "\n".join(_said(row["input"], answers=False))
        out.append(EvaluationText(PROMPT, asked))
    if names or out:  # a row with answers only is something else
        out += [EvaluationText(ANSWER, text) for name in ANSWERS if row.get(name) for text in _listed(row[name])]
    return [one for one in out if one.text and not one.text.isspace()]


def evaluation_id(row: Mapping[str, Any]) -> str:
    """The row's id, if it has one; else ""."""
    found = next((row[name] for name in _IDS if isinstance(row.get(name), str | int) and row[name] != ""), "")
    return str(found)[:200]


def _listed(value: Any) -> Iterator[str]:
    """The texts of an answer: one text, a list of texts or its JSON, or messages."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = parse_json(value)
        except ValueError:
            yield value
            return
    if isinstance(value, list) and not any(isinstance(one, Mapping) for one in value):
        yield from (one for one in value if isinstance(one, str))
    else:
        yield from _said(value, answers=True)


def _said(value: Any, *, answers: bool) -> Iterator[str]:
    """The texts of a value: itself, or the contents of messages."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for message in [value] if isinstance(value, Mapping) else value:
            if isinstance(message, Mapping) and (answers or _role(message) not in _SILENT):
                yield content_of(message)


def _spoken(value: Any) -> list[EvaluationText]:
    """A conversation: everything before its last answer, except system messages, and that answer."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            return []
    messages = [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
    last = len(messages)
    if messages and _role(messages[-1]) in _ASSISTANT:
        last -= 1
    asked = "\n".join(content_of(one) for one in messages[:last] if _role(one) not in _SILENT)
    out = [EvaluationText(PROMPT, asked)]
    return out + [EvaluationText(ANSWER, content_of(one)) for one in messages[last:]]


def _role(message: Mapping[str, Any]) -> str:
    return str(message.get("role", message.get("from", ""))).strip().lower()


def content_of(message: Mapping[str, Any]) -> str:
    """The text of a message, which may be a list of parts; "" if it has none."""
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") if isinstance(part, Mapping) else str(part) for part in content)
    return content if isinstance(content, str) else ""
