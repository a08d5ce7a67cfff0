"""Make the demo's tokenizer, `pipeline/demo/tokenizer`: `python -m tests.support.train_tokenizer`.

A byte-level BPE of some thousand tokens, learnt from the demo's problems and a page of prose and code, with a
ChatML-like template. Good for trying packtrain out, and for nothing else. The same versions of this file, of
`apps.jsonl` and of `tokenizers` give the same bytes.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = Path(__file__).parents[2] / "pipeline" / "demo"
VOCABULARY = 3072
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

# A word with the one character before it; up to three digits; signs; line ends; other blanks.
SPLIT = (
    r"[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

TEMPLATE = """\
{%- for message in messages -%}
    {%- if message.tool_calls -%}
        {{- raise_exception('the demo template has no form for tool calls') -}}
    {%- endif -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}
            {{- message.content + '<|im_end|>' -}}
        {%- endgeneration -%}
        {{- '\\n' -}}
    {%- else -%}
        {{- message.content + '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "model_max_length": 32768,
    "clean_up_tokenization_spaces": False,
}

PROSE = """\
A conversation is a list of messages. Each message has a role and a content. The system says how the assistant
should behave, the user asks a question, and the assistant gives an answer. Please write a function that returns
the largest number in a list. Sure, here is a short program that does what you asked for. First we read the
input, then we sort the values, and finally we print the result. Can you explain how it works? Of course. The
loop goes over all the elements once, so the running time is linear in the length of the list, and the memory
that it needs does not grow. What happens when the list is empty? Then there is nothing to compare, and the
function should either return a default value or raise an error. That makes sense, thank you very much. You are
welcome! Let me know if there is anything else that I can help you with today.

The mules left the valley before the sun was up. Nobody had told them how far it would be, and nobody would have
been believed. Behind the last houses the road became a path, and the path became a line of stones that someone
had laid out a long time ago. Where the water came down from the mountain they stopped to drink. The oldest of
them knew the way, or at least she walked as if she did, and so the others followed. By noon they could see the
whole country under them: the river, the fields, the church with its crooked tower, and the small white dots
which were the sheep. It was cold in the wind but warm behind the rocks. They would reach the pass by evening.

There are many ways to learn a language. Some people read books, others watch films, and a few just talk to
strangers on the train. It does not matter much which way you choose, as long as you keep going. The first weeks
are hard because every sentence has a word in it that you have never seen before. After a while the words begin
to repeat themselves, and you find that you understand more than you thought. I think that this is the best
moment of all. Remember that mistakes are part of it; without them you would not know what to change.

Bread needs flour, water, salt and time. Mix everything in a bowl until no dry flour is left, cover it, and let
it rest for an hour. Fold the dough from each of its four sides towards the middle. Do the same again after
thirty minutes, and once more after another thirty. Then put it into the fridge overnight. In the morning heat
the oven as hot as it will go, shape the loaf, and bake it for about forty minutes until it sounds hollow.
"""

CODE = '''\
from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import itertools
import os
import random
import re
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple


class Node:
    def __init__(self, value, left=None, right=None):
        self.value = value
        self.left = left
        self.right = right

    def __repr__(self):
        return f"{self.__class__.__name__}({self.value!r})"


class Stack:
    """A list of which only the last element can be seen."""

    def __init__(self, items=()):
        self._items = list(items)

    def __len__(self):
        return len(self._items)

    def push(self, item):
        self._items.append(item)

    def pop(self):
        if not self._items:
            raise IndexError("pop from an empty stack")
        return self._items.pop()


@dataclass(frozen=True)
class Point:
    x: float = 0.0
    y: float = 0.0

    @property
    def length(self) -> float:
        return (self.x ** 2 + self.y ** 2) ** 0.5

    @classmethod
    def parse(cls, text: str) -> "Point":
        x, y = text.split(",")
        return cls(float(x), float(y))


@lru_cache(maxsize=None)
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def primes(limit: int) -> List[int]:
    sieve = [True] * (limit + 1)
    sieve[0:2] = [False, False]
    for number in range(2, int(limit ** 0.5) + 1):
        if sieve[number]:
            for multiple in range(number * number, limit + 1, number):
                sieve[multiple] = False
    return [number for number, is_prime in enumerate(sieve) if is_prime]


def breadth_first(graph: Dict[int, List[int]], start: int) -> Dict[int, int]:
    distance = {start: 0}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for neighbor in graph.get(node, []):
            if neighbor not in distance:
                distance[neighbor] = distance[node] + 1
                queue.append(neighbor)
    return distance


def read_numbers(path: Path) -> Iterator[int]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                yield int(line)
            except ValueError as error:
                print(f"skipping {line!r}: {error}", file=sys.stderr)
            finally:
                pass


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Counts the words of a text.")
    parser.add_argument("--path", type=Path, default=None, help="the file to read")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args(argv)
    counts: Counter = Counter()
    if args.path is not None and args.path.exists():
        counts.update(args.path.read_text().lower().split())
    for word, count in counts.most_common(10):
        print(f"{count:6d} {word}")
    assert isinstance(counts, dict)
    squares = list(map(lambda x: x * x, filter(None, range(10))))
    matrix = [[0 for _ in range(3)] for _ in range(3)]
    while True:
        if not squares or len(matrix) == 0:
            break
        elif squares[-1] % 2 != 0:
            squares.pop()
            continue
        else:
            del squares[0]
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''


def texts() -> Iterator[str]:
    """What the tokenizer learns from: every problem, its starter code and its solutions, then the page."""
    for line in (HERE / "apps.jsonl").read_text(encoding="utf-8").splitlines():
        problem = json.loads(line)
        yield problem["question"]
        yield problem["starter_code"]
        yield from json.loads(problem["solutions"] or "[]")
        yield "system\nuser\nassistant\n```python\n"  # what the chat puts around them
    yield PROSE
    yield CODE


def train() -> Tokenizer:
    """The tokenizer, trained in this process."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # Offsets must cover the blanks of a token too: masks are made of them.
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def files() -> dict[str, str]:
    """The folder's files: name to content."""
    return {
        "tokenizer.json": train().to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(CONFIG, indent=2) + "\n",
        "chat_template.jinja": TEMPLATE,
    }


if __name__ == "__main__":
    folder = HERE / "tokenizer"
    folder.mkdir(exist_ok=True)
    for name, content in files().items():
        (folder / name).write_text(content, encoding="utf-8")
