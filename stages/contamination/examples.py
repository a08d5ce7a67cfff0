"""The texts of evaluation rows, and those of training examples."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...schemas.jsontext import parse_json
from ...schemas.rows import Example, Messages
from .index import ContaminationIndex, SharedText

_PROMPT_COLUMNS = ("question", "problem", "prompt", "query", "instruction", "input", "text", "content")
"""Columns that may hold what is asked. `input` belongs to `instruction`; of the others the first one counts."""
_ANSWER_COLUMNS = (
    "solutions", "solution", "answer", "answers", "completion", "response", "output", "canonical_solution", "chosen",
)  # fmt: skip
"""Columns that may hold what is expected; all of them count."""
_CONVERSATION_COLUMNS = ("messages", "conversations", "conversation")
_SKIPPED_ROLES = ("system", "developer", "tool")
"""Messages of these roles are neither questions nor answers."""
_ASSISTANT_ROLES = ("assistant", "gpt", "chatgpt", "model")
_KEYS_WITHOUT_TEXT = frozenset({"role", "from", "type", "name", "id", "tool_call_id"})
"""Keys of a message whose values are not compared."""


def evaluation_texts(row: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """The texts of an evaluation row that must not be in training data: what it asks, as (True, text), and each answer
    that it expects, as (False, text). Empty if the row has no known column.

    Evaluation sets have many forms, and only a few of them could be trained on. So texts are found by the names of
    columns, whatever else a row holds; tests, ids and starter code are left out. Of a conversation, the last message is
    an answer if it is the assistant's, and everything before it is the question.
    """
    messages = _messages_of(row)
    prompt_column = next((name for name in _PROMPT_COLUMNS if row.get(name)), None)
    answers: list[str] = []
    if messages:
        ends_with_answer = _role(messages[-1]) in _ASSISTANT_ROLES
        question_count = len(messages) - 1 if ends_with_answer else len(messages)
        # Earlier answers are with the questions: they are what the last question is about.
        questions = _texts(messages[:question_count])
        answers = _texts(messages[question_count:])
    elif prompt_column is not None:
        questions = _texts(_parts(row[prompt_column]))
        if prompt_column == "instruction":  # what it is to be done with stands in another column
            questions += _texts(_parts(row.get("input")))
    else:
        return []  # a row with answers only is something else
    for name in _ANSWER_COLUMNS:
        # Messages in a column of answers are answers, whatever their role.
        answers += _texts(_parts(row.get(name)), skipped_roles=())
    texts = [(True, "\n".join(questions))]
    texts += [(False, answer) for answer in answers]
    return [(asks, text) for asks, text in texts if text.strip()]


def _messages_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages of the first column that holds a conversation; none if there is no such column."""
    conversation = next((row[name] for name in _CONVERSATION_COLUMNS if row.get(name)), None)
    return [part for part in _parts(conversation) if isinstance(part, Mapping)]


def _parts(value: Any) -> list[Any]:
    """The elements of a list or of the JSON of one; or a list of the value alone."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):  # a text that begins with a bracket
            value = parse_json(value)
    return value if isinstance(value, list) else [value]


def _texts(parts: Sequence[Any], skipped_roles: Sequence[str] = _SKIPPED_ROLES) -> list[str]:
    """The texts among some parts, and the text of each message among them, unless its role is skipped."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str) or (isinstance(part, Mapping) and _role(part) not in skipped_roles):
            texts.append(_text_of(part))
    return texts


def _role(message: Mapping[str, Any]) -> str:
    return str(message.get("role", message.get("from", ""))).strip().lower()


def _text_of(value: Any) -> str:
    """A text; or all texts in messages: their contents, reasoning, and the arguments of tool calls."""
    texts: list[str] = []
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            # Reversed, because the last one is taken next.
            pending += reversed([inner for key, inner in value.items() if key not in _KEYS_WITHOUT_TEXT])
        elif isinstance(value, list):
            pending += reversed(value)
    return "\n".join(texts)


def search_examples(index: ContaminationIndex, examples: Sequence[Example]) -> list[SharedText]:
    """What examples share with evaluation texts, each of their parts compared alone."""
    # By identity: examples of one row, such as the solutions of a problem, have the same prompt object, which is
    # searched once.
    parts: dict[int, str | Messages] = {}
    examples_of_part: dict[int, list[int]] = {}
    for number, example in enumerate(examples):
        for part in (example.prompt, example.completion, example.rejected, example.text):
            if not part:
                continue
            parts.setdefault(id(part), part)
            numbers = examples_of_part.setdefault(id(part), [])
            # An example may have one object as two of its parts. Numbers ascend, so only the last one can be the same.
            if number not in numbers[-1:]:
                numbers.append(number)
    texts = [part if isinstance(part, str) else _text_of(part) for part in parts.values()]
    return index.search(texts, list(examples_of_part.values()))
