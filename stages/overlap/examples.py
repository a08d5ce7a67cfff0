"""The texts of evaluation rows, and what training examples share with them.

An example is searched in two parts, its prompt and what follows it. A question of an evaluation row is found in an
example as soon as one n-gram of it is there. An answer is found if at least `ANSWER_SHARE` of its n-grams are: programs
share short idioms without being copies.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...schemas.jsontext import parse_json
from ...schemas.rows import Example, Messages
from .index import OverlapIndex, TextHit

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
ANSWER_SHARE = 0.5
_GROUP = 1 << 19
"""Characters that are searched at once: their arrays of 64-bit numbers should fit into a core's cache."""


def evaluation_texts(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(PROMPT or ANSWER, text) of an evaluation row, which must not be in training data: what it asks, and the answers
    it expects. None if it has no known column.

    Evaluation sets have many forms, and only a few of them could be trained on. So texts are found by the names of
    columns, whatever else a row holds; tests, ids and starter code are left out. Of a conversation, its last answer is
    an answer.
    """
    spoken = next((row[name] for name in CONVERSATIONS if row.get(name)), None)
    messages = [one for one in _parts(spoken) if isinstance(one, Mapping)]
    last = len(messages) - (bool(messages) and _role(messages[-1]) in _ASSISTANT)
    asked, answers, names = (
        _texts(messages[:last]),
        _texts(messages[last:]),
        [name for name in PROMPTS if row.get(name)],
    )
    if names and not messages:
        columns = ["instruction", "input"] if names[0] == "instruction" else names[:1]
        asked = [text for name in columns for text in _texts(_parts(row.get(name)))]
    if names or messages:  # a row with answers only is something else
        answers += [text for name in ANSWERS for text in _texts(_parts(row.get(name)), silent=())]
    out = [(PROMPT, "\n".join(asked)), *((ANSWER, text) for text in answers)]
    return [one for one in out if one[1] and not one[1].isspace()]


def evaluation_id(row: Mapping[str, Any]) -> str:
    """The row's id, if it has one; else ""."""
    found = next((row[name] for name in _IDS if isinstance(row.get(name), str | int) and row[name] != ""), "")
    return str(found)[:200]


def _parts(value: Any) -> list[Any]:
    """A text, a message, or those of a list or of its JSON."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            value = parse_json(value)
    return value if isinstance(value, list) else [value]


def _texts(parts: Sequence[Any], silent: Sequence[str] = _SILENT) -> list[str]:
    """Texts, and the contents of messages.

    Args:
        silent: the roles whose messages are left out.
    """
    return [
        one if isinstance(one, str) else content_of(one)
        for one in parts
        if isinstance(one, str) or (isinstance(one, Mapping) and _role(one) not in silent)
    ]


def _role(message: Mapping[str, Any]) -> str:
    return str(message.get("role", message.get("from", ""))).strip().lower()


def content_of(message: Mapping[str, Any]) -> str:
    """The text of a message, which may be a list of parts; "" if it has none."""
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") if isinstance(part, Mapping) else str(part) for part in content)
    return content if isinstance(content, str) else ""


@dataclass(frozen=True, slots=True)
class ExampleHit:
    """What one example shares with one evaluation text."""

    example: int
    """The example's place in the list that was searched."""
    text: int
    """The evaluation text."""
    share: float
    """The share of the evaluation text's n-grams that the example has; 1 if it was compared whole."""
    longest: str
    """The longest run of words that both share, as they were compared."""


def search_examples(index: OverlapIndex, examples: Sequence[Example]) -> list[ExampleHit]:
    """Search all examples; the hits are in the order of examples, then of evaluation texts."""
    out = []
    for first, parts, texts in _groups(examples):
        hits = index.search(texts)
        for number, mine in enumerate(parts):
            found: dict[int, list[TextHit]] = {}
            for hit in (hit for part in mine for hit in hits[part]):
                found.setdefault(hit.text, []).append(hit)
            every = [_hit(index, first + number, text, found[text]) for text in sorted(found)]
            out += [hit for hit in every if hit is not None]
    return out


def _groups(examples: Sequence[Example]) -> Iterator[tuple[int, list[list[int]], list[str]]]:
    """Yield (first example, the parts of each, texts of all parts) of neighbours. A row's examples share its prompt."""
    first = size = 0
    parts, texts, known = list[list[int]](), list[str](), dict[int, int]()
    for number, example in enumerate(examples):
        if size >= _GROUP:
            yield first, parts, texts
            first, size, parts, texts, known = number, 0, [], [], {}
        parts.append([])
        for side in (example.prompt, example.completion, example.rejected, example.text):
            if not side:
                continue
            if id(side) not in known:
                known[id(side)] = len(texts)
                texts.append(side if isinstance(side, str) else _spoken_text(side))
                size += len(texts[-1])
            parts[-1].append(known[id(side)])
    yield first, parts, texts


def _hit(index: OverlapIndex, example: int, text: int, hits: Sequence[TextHit]) -> ExampleHit | None:
    count = int(index.counts[text])
    covered = len(np.unique(np.concatenate([hit.places for hit in hits])))
    share = covered / count if count else 1.0
    if not index.asks[text] and share < ANSWER_SHARE:
        return None
    return ExampleHit(example, text, share, max(hits, key=lambda hit: hit.size).longest)


def _spoken_text(messages: Messages) -> str:
    """The contents of messages, with reasoning and the arguments of tool calls."""
    out = []
    for message in messages:
        out.append(content_of(message))
        if len(message) > 2:  # more than a role and a content
            out += [text for key in ("reasoning_content", "reasoning") if isinstance(text := message.get(key), str)]
            for call in message.get("tool_calls") or ():
                function = call.get("function", call) if isinstance(call, dict) else {}
                said = function.get("arguments") if isinstance(function, dict) else None
                if said:
                    out.append(said if isinstance(said, str) else str(said))
    return "\n".join(out)
