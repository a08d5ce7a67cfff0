"""The texts of evaluation rows, and those of training examples."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...schemas.jsontext import parse_json
from ...schemas.rows import Example, Messages
from .index import ContaminationIndex, Shared

_PROMPTS = ("question", "problem", "prompt", "query", "instruction", "input", "text", "content")
"""Columns that may hold what is asked. `input` belongs to `instruction`; of the others the first one counts."""
_ANSWERS = (
    "solutions", "solution", "answer", "answers", "completion", "response", "output", "canonical_solution", "chosen",
)  # fmt: skip
"""Columns that may hold what is expected; all of them count."""
_CONVERSATIONS = ("messages", "conversations", "conversation")
_SILENT = ("system", "developer", "tool")
_NAMES = frozenset({"role", "from", "type", "name", "id", "tool_call_id"})
"""Keys of a message that hold no text."""
_ASSISTANT = ("assistant", "gpt", "chatgpt", "model")


def evaluation_texts(row: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """(whether it asks, text) of an evaluation row, which must not be in training data: what it asks, and the answers
    it expects. None if it has no known column.

    Evaluation sets have many forms, and only a few of them could be trained on. So texts are found by the names of
    columns, whatever else a row holds; tests, ids and starter code are left out. Of a conversation, its last answer is
    an answer.
    """
    spoken = next((row[name] for name in _CONVERSATIONS if row.get(name)), None)
    messages = [one for one in _parts(spoken) if isinstance(one, Mapping)]
    last = len(messages) - (bool(messages) and _role(messages[-1]) in _ASSISTANT)
    asked, answers = _texts(messages[:last]), _texts(messages[last:])
    names = [name for name in _PROMPTS if row.get(name)]
    if names and not messages:
        columns = ["instruction", "input"] if names[0] == "instruction" else names[:1]
        asked = [text for name in columns for text in _texts(_parts(row.get(name)))]
    if names or messages:  # a row with answers only is something else
        answers += [text for name in _ANSWERS for text in _texts(_parts(row.get(name)), silent=())]
    out = [(True, "\n".join(asked)), *((False, text) for text in answers)]
    return [one for one in out if one[1] and not one[1].isspace()]


def _parts(value: Any) -> list[Any]:
    """A text, a message, or those of a list or of its JSON."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            value = parse_json(value)
    return value if isinstance(value, list) else [value]


def _texts(parts: Sequence[Any], silent: Sequence[str] = _SILENT) -> list[str]:
    """Texts, and what messages say.

    Args:
        silent: the roles whose messages are left out.
    """
    some = [one for one in parts if isinstance(one, str) or (isinstance(one, Mapping) and _role(one) not in silent)]
    return [_said(one) for one in some]


def _role(message: Mapping[str, Any]) -> str:
    return str(message.get("role", message.get("from", ""))).strip().lower()


def _said(value: Any) -> str:
    """A text; or all texts in messages: their contents, reasoning, and the arguments of tool calls."""
    texts = list[str]()

    def add(value: Any) -> None:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            for key, one in value.items():
                if key not in _NAMES:
                    add(one)
        elif isinstance(value, list):
            for one in value:
                add(one)

    add(value)
    return "\n".join(texts)


def search_examples(index: ContaminationIndex, examples: Sequence[Example]) -> list[Shared]:
    """What examples share with evaluation texts, each of their parts compared alone."""
    parts: dict[int, tuple[str | Messages, dict[int, None]]] = {}  # by identity: a row's examples share its prompt
    for number, example in enumerate(examples):
        for part in (example.prompt, example.completion, example.rejected, example.text):
            if part:
                parts.setdefault(id(part), (part, {}))[1][number] = None
    texts = [part if isinstance(part, str) else _said(part) for part, _ in parts.values()]
    return index.search(texts, [list(numbers) for _, numbers in parts.values()])
