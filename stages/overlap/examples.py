"""The texts of evaluation rows, and what training examples share with them.

An example is searched in two parts, its prompt and what follows it. A question of an evaluation row is found in an
example as soon as one n-gram of it is there. An answer is found if at least `ANSWER_SHARE` of its n-grams are: programs
share short idioms without being copies.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

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
_SILENT = ("system", "developer", "tool")
_NAMES = ("role", "from", "type", "name", "id", "tool_call_id")
"""Keys of a message that hold no text."""
_ASSISTANT = ("assistant", "gpt", "chatgpt", "model")
ANSWER_SHARE = 0.5


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
    asked, answers = _texts(messages[:last]), _texts(messages[last:])
    names = [name for name in PROMPTS if row.get(name)]
    if names and not messages:
        columns = ["instruction", "input"] if names[0] == "instruction" else names[:1]
        asked = [text for name in columns for text in _texts(_parts(row.get(name)))]
    if names or messages:  # a row with answers only is something else
        answers += [text for name in ANSWERS for text in _texts(_parts(row.get(name)), silent=())]
    out = [(PROMPT, "\n".join(asked)), *((ANSWER, text) for text in answers)]
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
    return ["\n".join(_strings(one)) for one in some]


def _role(message: Mapping[str, Any]) -> str:
    return str(message.get("role", message.get("from", ""))).strip().lower()


def _strings(value: Any) -> Iterator[str]:
    """A text; or all texts in messages: their contents, reasoning, and the arguments of tool calls."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for key, one in value.items() if key not in _NAMES for text in _strings(one))
    elif isinstance(value, list):
        yield from (text for one in value for text in _strings(one))


class ExampleHit(NamedTuple):
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
    texts = dict[int, str]()  # by the identity of a prompt or an answer: a row's examples share its prompt
    for example in examples:
        for side in _sides(example):
            if id(side) not in texts:
                texts[id(side)] = "\n".join(_strings(side))
    hits = dict(zip(texts, index.search(list(texts.values())), strict=True))
    out = []
    for number, example in enumerate(examples):
        found: dict[int, list[TextHit]] = {}
        for hit in (hit for side in _sides(example) for hit in hits[id(side)]):
            found.setdefault(hit.text, []).append(hit)
        for text in sorted(found):
            count = int(index.counts[text])
            covered = len(np.unique(np.concatenate([hit.places for hit in found[text]])))
            share = covered / count if count else 1.0
            if index.asks[text] or share >= ANSWER_SHARE:
                longest = max(found[text], key=lambda hit: hit.size).longest
                out.append(ExampleHit(number, text, share, longest))
    return out


def _sides(example: Example) -> list[str | Messages]:
    """The parts of an example that are searched, each alone."""
    return [side for side in (example.prompt, example.completion, example.rejected, example.text) if side]
