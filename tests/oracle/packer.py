"""What packtrain must write, worked out one example, one token and one row at a time.

Texts and ids are those of transformers, turns of the assistant those of its generation marks, and nothing is imported
from packtrain. What packtrain alone decides is looked up in what it wrote, and held against what it promises: the split
of an example by the seed, how many copies a weight gives it, and where a long one is divided.
"""

import json
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any

Row = dict[str, Any]
Span = tuple[int, int]

IGNORED = -100
PAD = 0
END = "<|im_end|>"


# Examples


@dataclass(eq=False)
class Example:
    """One example as transformers tokenizes it.

    Attributes:
        begin: the first token of the completion; None for texts, which have none.
        added: tokens that are in no text: `special` at the front, `end_of_sequence`.
        weights: one per token; 0 where a message is taken out.
        turns: (first token, one past the last) of the assistant's turns, or of a completion of plain text.
        ends: the end-of-turn tokens.
        says: what duplicates have in common.
        mask: its source's, which the packer knows.
    """

    source: str
    id: str
    group: str
    ids: list[int]
    begin: int | None
    added: Counter[str]
    weights: list[float]
    turns: list[Span] = field(default_factory=list)
    ends: set[int] = field(default_factory=set)
    talks: bool = False
    straddles: int = 0
    says: tuple[Any, ...] = ()
    mask: Row = field(default_factory=dict)

    def asked(self) -> list[bool]:
        """Which tokens the mask selects."""
        policy, size = self.mask["policy"], len(self.ids)
        if policy == "all" or self.begin is None:
            chosen = {*range(0 if policy == "all" else self.added["special"], size)}
        elif policy == "completion" or not self.talks:
            chosen = {*range(self.begin, size)}
        else:
            turns = self.turns if policy == "assistant" else self.turns[-1:]
            chosen = {place for turn in turns for place in range(*turn)}
        if policy != "all" and not self.mask["train_end"]:
            chosen -= self.ends
        return [place in chosen and self.weights[place] > 0 for place in range(size)]

    def trained_turns(self) -> list[Span]:
        """The assistant's turns that the mask selects."""
        if self.mask["policy"] == "all" or self.mask["policy"] == "assistant":
            chosen = self.turns
        elif self.mask["policy"] == "last_assistant":
            chosen = self.turns[-1:]
        else:
            chosen = [turn for turn in self.turns if self.begin is not None and turn[0] >= self.begin]
        return [turn for turn in chosen if self.weights[turn[0]] > 0] if self.talks else []


class Reader:
    """Makes examples of rows with a tokenizer of transformers, whose template has generation marks."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._begins = tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]

    def examples(self, source: str, line: int, row: Row) -> Iterator[Example]:
        """The examples of a usable row, in line `line` of the file that is called like its source."""
        name = f"{source}/{source}:{line}"
        if "text" in row:
            yield self._plain(source, name, None, row["text"], row.get("score"))
        elif "prompt" in row:
            yield self._plain(source, name, row["prompt"], row["completion"], row.get("score"))
        elif "messages" in row:
            yield self._chat(source, name, "", row["messages"])
        else:
            question = {"role": "user", "content": f"{row['question']}\n\nSolve this in Python."}
            for sub, code in solutions(row):
                answer = {"role": "assistant", "content": f"```python\n{code.rstrip()}\n```"}
                yield self._chat(source, f"{name}/{sub}", str(row["id"]), [question, answer])

    def _plain(self, source: str, name: str, prompt: str | None, rest: str, score: float | None) -> Example:
        text = (prompt or "") + rest
        special = int(self._begins and not text.startswith(self._tokenizer.bos_token))
        ended = int(not text.endswith(END))
        ids, spans = self._tokens(text + END * ended)
        ids = [self._tokenizer.bos_token_id] * special + ids
        added = Counter(special=special, end_of_sequence=ended)
        weight = 1.0 if score is None else score
        made = Example(source, name, "", ids, None, added, [weight] * len(ids), says=(text, prompt or "", weight))
        if prompt is not None:
            inside = bisect_left([end for _, end in spans], len(prompt) + 1)
            made.begin = special + inside
            made.straddles = int(inside < len(spans) and spans[inside][0] < len(prompt))
            made.turns = [(made.begin, len(ids))]
        return made

    def _chat(self, source: str, name: str, group: str, messages: list[Row]) -> Example:
        bare = [{"role": one["role"], "content": one["content"]} for one in messages]
        text = self._tokenizer.apply_chat_template(bare, tokenize=False)
        ids, spans = self._tokens(text)
        marked = self._tokenizer.apply_chat_template(bare, return_dict=True, return_assistant_tokens_mask=True)
        assert marked["input_ids"] == ids
        marks = marked["assistant_masks"]
        turns = [
            (first, next((place for place in range(first, len(ids)) if not marks[place]), len(ids)))
            for first in range(len(ids))
            if marks[first] and not (first and marks[first - 1])
        ]
        assert len(turns) == sum(one["role"] == "assistant" for one in messages)
        begin = len(ids)
        if messages[-1]["role"] == "assistant":
            prompt = self._tokenizer.apply_chat_template(bare[:-1], tokenize=False, add_generation_prompt=True)
            begin = bisect_left([end for _, end in spans], len(prompt) + 1)
        of_chars = weights_of_characters(messages)
        weights = [of_chars[end - 1] for _, end in spans]
        said = tuple((one["role"], one["content"], weight_of(one)) for one in messages)
        ends = {last - 1 for _, last in turns}
        return Example(source, name, group, ids, begin, Counter(), weights, turns, ends, True, says=(said,))

    def _tokens(self, text: str) -> tuple[list[int], list[Span]]:
        made = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(made.input_ids), [tuple(one) for one in made.offset_mapping]


def weight_of(message: Row) -> float:
    """How much a message counts; 0 if it is taken out."""
    return 0.0 if message.get("train") is False else float(message.get("weight", 1))


def weights_of_characters(messages: list[Row]) -> list[float]:
    """One weight per character of the conversation in ChatML.

    What a message says has its own, with the end of an assistant's turn; between two messages the smaller one holds.
    """
    found: list[float] = []
    weights = [weight_of(message) for message in messages]
    for number, message in enumerate(messages):
        own = weights[number]
        before = min(own, *weights[max(0, number - 1) : number + 1])
        after = min(own, *weights[number : number + 2])
        end = own if message["role"] == "assistant" else after
        found += [before] * len(f"<|im_start|>{message['role']}\n") + [own] * len(message["content"])
        found += [end] * len(END) + [after]
    return found


def solutions(row: Row) -> list[tuple[int, str]]:
    """(place in the row, solution) of the different ones, empty ones apart."""
    found: dict[str, tuple[int, str]] = {}
    for sub, code in enumerate(json.loads(row["solutions"])):
        if code.strip():
            found.setdefault(code.rstrip(), (sub, code))
    return list(found.values())


# What becomes of them


@dataclass(frozen=True)
class Piece:
    """A part of an example: [start, end), of which the tokens from `fresh` on are not in the piece before."""

    example: Example
    start: int
    end: int
    fresh: int

    def labels(self) -> list[int]:
        """Its labels: never at its first token, and not where it repeats the piece before."""
        asked, ids = self.example.asked(), self.example.ids
        return [
            ids[place] if asked[place] and place >= self.fresh and place > self.start else IGNORED
            for place in range(self.start, self.end)
        ]


@dataclass(frozen=True)
class Written:
    """What only packtrain's output says of an example: its split, its copies, and its pieces if it was divided."""

    split: str
    copies: int
    spans: tuple[Span, ...]


class Packer:
    """Packs examples as a configuration says.

    Attributes:
        masks: the mask of each source.
        pieces: the pieces of each packed example, by its id.
        dropped: why each other example is left out.
    """

    def __init__(self, config: Row, examples: Sequence[Example], written: dict[str, Written]) -> None:
        self.config, self.examples, self.written = config, examples, written
        self.truncate, self.pack = config["truncate"], config["pack"]
        self.masks: dict[str, Row] = {one["name"]: config["mask"] | one.get("mask", {}) for one in config["sources"]}
        for example in examples:
            example.mask = self.masks[example.source]
        self.capacity: int = self.truncate["max_length"]
        self.strategy: str = self.pack["strategy"]
        self.document, self.row = multiples(self.pack)
        self.pieces: dict[str, list[Piece]] = {}
        self.dropped: dict[str, str] = {}
        self._seen: set[tuple[Any, ...]] = set()
        for example in examples:
            reason = self._reason(example)
            if reason is None and config["duplicates"] == "drop" and example.says in self._seen:
                reason = "duplicate"
            elif reason is None and self.divided(example) and example.id not in written:
                reason = "cut_untrained"  # whether it may be is for the caller to see
            if reason is None:
                self._seen.add(example.says)
                self.pieces[example.id] = list(self._pieces(example))
            else:
                self.dropped[example.id] = reason

    def limited(self, example: Example) -> Span:
        """[first token, one past the last) that the limits leave, before anything is divided."""
        low, high = 0, len(example.ids)
        if self.truncate["overlong"] != "truncate" or self.strategy in ("bfd_split", "wrapped"):
            return low, high
        if self.truncate["keep"] == "start":
            return low, min(high, low + self.capacity)
        return max(low, high - self.capacity), high

    def divided(self, example: Example) -> bool:
        """Whether it is too long for a row, and cut into pieces."""
        low, high = self.limited(example)
        return self.truncate["overlong"] == "split" and high - low > self.capacity

    def _reason(self, example: Example) -> str | None:
        asked, kept = example.asked(), self.config["keep_untrained"]
        low, high = self.limited(example)
        if len(asked) < (self.config["filter"]["min_tokens"] or 0):
            return "min_tokens"
        if len(asked) > (self.config["filter"]["max_tokens"] or len(asked)):
            return "max_tokens"
        if not any(asked[1:]) and not kept:
            return "untrained"
        if self.truncate["overlong"] == "drop" and high - low > self.capacity:
            return "overlong"
        if not any(asked[low + 1 : high]) and not kept:
            return "cut_untrained"
        return None

    def _pieces(self, example: Example) -> Iterator[Piece]:
        low, high = self.limited(example)
        if self.divided(example):
            overlap, before = self.truncate["split"]["overlap"], None
            for start, end in self.written[example.id].spans:
                fresh = start
                if before is not None and before[1] >= start:
                    fresh = before[1]
                    assert fresh - start == min(overlap, before[1] - before[0])
                elif start > low:  # the piece before is left out, and this one repeats its end all the same
                    fresh = start + overlap
                before = start, end
                yield Piece(example, start, end, fresh)
        elif self.strategy == "bfd_split":
            for start in range(low, high, self.capacity):
                yield Piece(example, start, min(high, start + self.capacity), start)
        else:
            yield Piece(example, low, high, low)

    def rows(self, split: str) -> list[list[Piece]]:
        """The pieces of every row, before rows are shuffled. Exact but for `tight` and `max_docs`, which only promise
        to need no more rows."""
        every = [
            piece
            for example in self.examples
            if example.id in self.pieces and self.written[example.id].split == split
            for piece in self.pieces[example.id]
            for _ in range(self.written[example.id].copies)
        ]
        if self.strategy == "none":
            return [[piece] for piece in every]
        if self.strategy == "wrapped":
            return wrapped(every, self.capacity)
        sizes = [self.padded(piece) for piece in every]
        return [[every[place] for place in row] for row in best_fit(sizes, self.capacity)]

    def padded(self, piece: Piece) -> int:
        """The tokens of a piece with its padding."""
        return -(-(piece.end - piece.start) // self.document) * self.document


def multiples(pack: Row) -> Span:
    """What documents and rows are padded to multiples of."""
    document, row = pack["align"], 1
    if parallel := pack.get("parallel"):
        cp, tp = parallel["cp"], parallel["tp"]
        if parallel["layout"] == "thd":
            document = lcm(document, 2 * cp if tp == 1 else lcm(2 * cp, cp * tp))
        else:
            row = cp * tp
    return document, row


def best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing: each goes where it leaves the least space; of such rows, to the one that waits longest."""
    rows: list[list[int]] = []
    open_rows: dict[int, deque[list[int]]] = defaultdict(deque)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        space = min((free for free, queue in open_rows.items() if queue and free >= sizes[place]), default=capacity)
        if open_rows[space]:
            row = open_rows[space].popleft()
        else:
            row, space = [], capacity
            rows.append(row)
        row.append(place)
        open_rows[space - sizes[place]].append(row)
    return rows


def wrapped(pieces: Sequence[Piece], capacity: int) -> list[list[Piece]]:
    """All pieces one after another, cut where a row is full."""
    rows: list[list[Piece]] = []
    left = 0
    for piece in pieces:
        start = piece.start
        while start < piece.end:
            if not left:
                rows.append([])
                left = capacity
            end = min(piece.end, start + left)
            rows[-1].append(Piece(piece.example, start, end, start))
            left -= end - start
            start = end
    return rows
