"""Nothing is lost: the ledger is what an independent count of inputs and shards says, whatever the configuration.

The truth here is made by transformers' tokenizer alone, one example at a time: its ids, and the first token that the
mask selects. Everything in the ledger is counted again from that and from the rows in the shards.
"""

import itertools
import json
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import packtrain
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.inputs import scan as sources_module
from packtrain.pipeline.pack.window_plan import WindowPlan
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.errors import InputError, IntegrityError
from packtrain.schemas.ledger import SourceLedger
from packtrain.schemas.manifest import Manifest
from packtrain.schemas.rows import IGNORE_INDEX
from packtrain.stages.prep import AppsOptions, make_format, public_row

from tests.support.examples import examples

Row = dict[str, Any]

TEMPLATE = (
    "{% for message in messages %}"
    "{% if 'FORBIDDEN' in message.content %}{{ raise_exception('a forbidden word') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORDS = (
    "mules",
    "left",
    "the",
    "valley",
    "before",
    "sun",
    "was",
    "up",
    "nobody",
    "told",
    "them",
    "how",
    "far",
    "it",
    "is",
)
LENGTH = 96
PAD = 0
END = 3
"""The token `<|im_end|>`."""


# --- a corpus with everything in it that can go wrong ---


def words(count: int, salt: int) -> str:
    return " ".join(WORDS[(salt * 7 + index * (salt % 5 + 1)) % len(WORDS)] for index in range(count))


def message(role: str, content: str) -> Row:
    return {"role": role, "content": content}


def apps_lines() -> Iterator[str]:
    for number in range(8):
        solutions = [f"print({words(1 + 4 * s + number, s)!r})" for s in range(number % 4)]
        row: Row = {"id": number, "question": words(3 + number, number), "solutions": json.dumps(solutions)}
        yield json.dumps(row)  # 0 and 4 have no solution
    same = ["print(1)", "print(1)\n", "  ", "print(2)"]
    yield json.dumps({"id": 90, "question": "Twice", "solutions": json.dumps(same)})
    some = ["print('FORBIDDEN')", "print('allowed')"]
    yield json.dumps({"id": 91, "question": "Partly", "solutions": json.dumps(some)})
    yield json.dumps({"id": 92, "question": "Whole", "solutions": json.dumps(["FORBIDDEN 1", "FORBIDDEN 2"])})
    yield json.dumps({"id": 93, "question": "Broken", "solutions": "[1, 2"})


def pair_lines() -> Iterator[str]:
    for number in range(20):
        long = 70 if number % 6 == 5 else 1 + number % 9
        yield json.dumps({"prompt": words(1 + number % 30, number) + "\n", "completion": words(long, number + 1)})
    yield json.dumps({"prompt": words(120, 3) + "\n", "completion": "lost"})  # truncation takes the completion
    yield json.dumps({"prompt": "", "completion": "alone"})
    yield json.dumps({"prompt": "ends\n", "completion": "itself<|im_end|>"})
    yield json.dumps({"prompt": "<s>begins\n", "completion": "itself"})
    yield json.dumps({"prompt": "no", "completion": ""})
    yield json.dumps({"prompt": "no"})
    yield json.dumps({"prompt": "no", "completion": [message("assistant", "mixed")]})
    yield ""
    yield '{"prompt": "no", "comple'
    yield "[1, 2, 3]"
    yield json.dumps({"prompt": "long", "completion": "long " * 400})


def chat_lines() -> Iterator[str]:
    for number in range(15):
        turns = [
            message(role, words(2 + (number * 5 + turn) % 17, number + turn))
            for turn, role in enumerate(("user", "assistant") * (1 + number % 3))
        ]
        yield json.dumps({"messages": turns})
    turns = [message(role, words(9 + turn, turn)) for turn, role in enumerate(("user", "assistant") * 6)]
    yield json.dumps({"messages": turns})  # long, and then short enough
    yield json.dumps({"messages": turns[:2]})
    yield json.dumps({"messages": turns[:2]})  # what an earlier one says
    yield json.dumps({"messages": [turns[0], message("assistant", words(150, 4))]})  # a long answer
    yield json.dumps({"messages": [message("user", "nobody answers")]})  # nothing to train
    yield json.dumps({"messages": [message("user", words(80, 2))]})  # and too long as well
    yield json.dumps({"messages": [message("user", "FORBIDDEN"), message("assistant", "no")]})
    yield json.dumps({"messages": []})
    yield json.dumps({"messages": [message("user", "?"), {"role": "user", "content": [{"type": "image"}]}]})
    yield "   "


def text_lines(salt: int) -> Iterator[str]:
    for number in range(12):
        yield json.dumps({"text": words(1 + (number * number + salt) % 60, number)})
    yield json.dumps({"text": ""})
    yield json.dumps({"text": "<|im_end|>"})
    yield json.dumps({"text": "the same in both files, and long enough to be trained"})
    yield json.dumps({"text": "\n\n".join(f"{words(9 + salt, part)}.\n{words(14, part + salt)}." for part in range(9))})
    yield json.dumps({"body": "elsewhere"})


REJECTED = {
    "apps": {"bad_solutions": 1, "template_error": 1},
    "pairs": {
        "empty_completion": 1,
        "invalid_json": 1,
        "missing_key": 1,
        "not_an_object": 1,
        "row_too_long": 1,
        "wrong_type": 1,
    },
    "chats": {"empty": 1, "not_text": 1, "template_error": 1},
    "texts": {"empty": 2, "missing_key": 2},
}
FILTERED = {"apps": {"no_solution": 2}, "pairs": {}, "chats": {}, "texts": {}}
SKIPPED = {"apps": {"duplicate": 1, "empty": 1}, "pairs": {}, "chats": {}, "texts": {}}
REFUSED = {"apps": {"template_error": 1}, "pairs": {}, "chats": {}, "texts": {}}
BLANK = {"apps": 0, "pairs": 1, "chats": 1, "texts": 0}


@dataclass(frozen=True)
class Document:
    """One example as transformers tokenizes it."""

    source: str
    id: str
    group: str
    ids: list[int]
    begin: int
    """The first token after the prompt and after what the tokenizer added."""
    special: int
    ended: int
    turns: int = 0
    """Messages of the assistant, in a conversation."""
    answered: bool = False
    """Whether the last message is one of them."""
    text: str = ""
    """Of a text."""

    def asked(self, mask: str) -> list[bool]:
        return [mask == "all" or place >= self.begin for place in range(len(self.ids))]

    def limited(self, choice: Row) -> tuple[int, int]:
        """(first token, one past the last) that the limits of prompt, completion and row leave."""
        low, high = 0, len(self.ids)
        if self.source != "texts":
            if choice["max_prompt"] is not None:
                low = max(0, self.begin - choice["max_prompt"])
            if choice["max_completion"] is not None:
                high = min(high, self.begin + choice["max_completion"])
        if choice["overlong"] == "truncate" and choice["strategy"] in ("bfd", "none"):
            return (low, min(high, low + LENGTH)) if choice["keep"] == "start" else (max(low, high - LENGTH), high)
        return low, high


@dataclass(frozen=True)
class Corpus:
    """The files, and the documents that stand in them, in order."""

    folder: Path
    tokenizer: Path
    documents: list[Document]

    def config(self, out: Path, **changes: Any) -> Row:
        def source(name: str, form: str, *files: str, **more: Any) -> Row:
            return {"name": name, "format": form, "path": [str(self.folder / file) for file in files], **more}

        return {
            "out": str(out),
            "cache": str(self.folder / "cache"),
            "tokenizer": {"path": str(self.tokenizer)},
            "sources": [
                source("apps", "apps", "apps.jsonl"),
                source("pairs", "prompt_completion", "pairs.jsonl", max_row_bytes=1500),
                source("chats", "messages", "chats.jsonl"),
                source("texts", "text", "texts-1.jsonl", "texts-2.jsonl"),
            ],
            "truncate": {"max_length": LENGTH},
            "run": {"workers": 1, "report": False},
            **changes,
        }

    @property
    def lines(self) -> dict[str, list[str]]:
        """The lines of each source."""
        return {
            name: [
                line
                for file in sorted(self.folder.glob(f"{name}*.jsonl"))
                for line in file.read_text().removesuffix("\n").split("\n")
            ]
            for name in ("apps", "pairs", "chats", "texts")
        }


def tokenize(tokenizer: Any, row: Row) -> tuple[list[int], int, int, int]:
    """(ids, first token selected by the mask, special tokens added, end-of-sequence tokens added) of a public row."""
    end = tokenizer.eos_token
    if "messages" in row:
        turns = row["messages"]
        cut = len(turns) - (turns[-1]["role"] == "assistant")
        row = {"prompt": turns[:cut], "completion": turns[cut:]}
    if isinstance(row.get("prompt"), list):
        whole = tokenizer.apply_chat_template(row["prompt"] + row["completion"], tokenize=False)
        prompt = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        special = ended = 0
    else:
        prompt, whole = row.get("prompt", ""), row.get("text", "") or row["prompt"] + row["completion"]
        special = int(not whole.startswith(tokenizer.bos_token))
        ended = int(not whole.endswith(end))
        whole += end * ended
    ids = tokenizer(whole, add_special_tokens=False).input_ids
    head = tokenizer(prompt, add_special_tokens=False).input_ids
    if not row.get("completion", True):
        head = ids
    assert ids[: len(head)] == head  # the corpus is made so: tests of boundaries are elsewhere
    return [tokenizer.bos_token_id] * special + ids, special + len(head), special, ended


def is_usable(source: str, row: Row) -> bool:
    if source == "pairs":
        return isinstance(row["completion"], str) and row["completion"] != ""
    if source == "chats":
        return all(isinstance(turn["content"], str) for turn in row["messages"])
    return bool(row["text"])


def documents_of(folder: Path, tokenizer: Any) -> Iterator[Document]:
    options = AppsOptions()
    apps = make_format("apps", options)
    lines = list(enumerate((folder / "apps.jsonl").read_bytes().splitlines()))
    for example in apps.prepare(lines).examples:
        row = public_row(example, apps.form)
        if "FORBIDDEN" not in row["completion"][0]["content"]:
            name = f"apps/apps:{example.line + 1}/{example.sub}"
            yield Document("apps", name, example.group, *tokenize(tokenizer, row), turns=1, answered=True)
    for source, file in (("pairs", "pairs"), ("chats", "chats"), ("texts", "texts-1"), ("texts", "texts-2")):
        for number, line in enumerate((folder / f"{file}.jsonl").read_text().splitlines(), 1):
            try:
                row = json.loads(line)
                usable = is_usable(source, row)
                if not usable or "FORBIDDEN" in line or len(line) > 1500 or row.get("messages") == []:
                    continue
            except (ValueError, KeyError, TypeError):
                continue
            roles = [turn["role"] for turn in row.get("messages", [])]
            answered = roles[-1:] == ["assistant"]
            turns = roles.count("assistant")
            name, text = f"{source}/{file}:{number}", row.get("text", "")
            yield Document(source, name, "", *tokenize(tokenizer, row), turns=turns, answered=answered, text=text)


@pytest.fixture(scope="module")
def corpus(
    make_tokenizer: Callable[..., Path], answered: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> Corpus:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("ledger")
    files = {
        "apps": apps_lines(),
        "pairs": pair_lines(),
        "chats": chat_lines(),
        "texts-1": text_lines(0),
        "texts-2": text_lines(5),
    }
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
    tokenizer = make_tokenizer("forbidding-bos", bos=True, template=TEMPLATE)
    shutil.copytree(answered(tokenizer), folder / "cache/tokenizers")
    documents = list(documents_of(folder, AutoTokenizer.from_pretrained(tokenizer)))
    assert {document.source for document in documents} == {"apps", "pairs", "chats", "texts"}
    assert 85 < len(documents) < 110
    assert sum(len(document.ids) > LENGTH for document in documents) >= 12
    return Corpus(folder, tokenizer, documents)


# --- configurations: any two values together at least once, and among the slow tests any three ---

AXES: dict[str, tuple[Any, ...]] = {
    "mask": ("completion", "all"),
    "overlong": ("truncate", "drop"),
    "keep": ("start", "end"),
    "strategy": ("bfd", "bfd_split", "wrapped", "none"),
    "align": (1, 8),
    "max_docs": (None, 2),
    "holdout": (None, "group", "example"),
    "keep_untrained": (False, True),
    "shuffle": (False, True),
    "format": ("arrow", "parquet"),
}


def allowed(choice: Row) -> bool:
    if choice["strategy"] == "wrapped" and (choice["align"] > 1 or choice.get("max_docs") is not None):
        return False
    if choice["strategy"] == "wrapped" and choice.get("mix"):
        return False  # every copy is cut at other places, and nothing says which piece is of which
    cuts = choice["strategy"] in ("bfd_split", "wrapped")
    return not cuts or (choice["overlong"], choice["keep"]) == ("truncate", "start")


def covering(axes: dict[str, tuple[Any, ...]], size: int) -> list[Row]:
    """Few configurations in which any `size` allowed values meet, found greedily; the same ones always."""
    every = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    choices = [choice for choice in every if allowed(choice)]
    step = max(1, len(choices) // 4000)
    while math.gcd(step, 2 * 3 * 5 * 7) > 1:  # or an axis of so many values would always have the same one
        step += 1
    choices = choices[::step]
    numbers = {axis: np.array([values.index(choice[axis]) for choice in choices]) for axis, values in axes.items()}
    columns = []  # of each combination of axes: which choice has which of their values
    for some in itertools.combinations(axes, size):
        tuples = np.ravel_multi_index([numbers[axis] for axis in some], [len(axes[axis]) for axis in some])
        columns.append(tuples[:, None] == np.unique(tuples))
    holds = np.concatenate(columns, axis=1)
    missing = np.ones(holds.shape[1], bool)
    out = []
    while missing.any():
        best = int(np.argmax(holds[:, missing].sum(axis=1)))
        out.append(choices[best])
        missing &= ~holds[best]
    return out


LIMITED: dict[str, tuple[Any, ...]] = {
    "mask": ("completion", "all"),
    "overlong": ("truncate", "drop", "turns-0", "turns-5", "paragraphs-1", "tokens-0", "tokens-9"),
    "keep": ("start", "end"),
    "strategy": ("bfd", "bfd_split", "wrapped", "none"),
    "align": (1, 8),
    "max_prompt": (None, 20),
    "max_completion": (None, 15),
    "filter": (None, "all", "by source"),
    "duplicates": ("keep", "drop"),
    "where": (None, "LENGTH(text) > 60"),
    "holdout": (None, "group"),
    "keep_untrained": (False, True),
    "mix": (None, "repeat", "weight"),
}
"""What is cut and left out before packing: any two values together at least once."""

PAIRS = covering(AXES, 2)
TRIPLES = [choice for choice in covering(AXES, 3) if choice not in PAIRS]
PLAIN: Row = {
    "max_docs": None,
    "shuffle": True,
    "format": "arrow",
    "max_prompt": None,
    "max_completion": None,
    "filter": None,
    "duplicates": "keep",
    "where": None,
    "mix": None,
}
QUICK = [{**PLAIN, **choice} for choice in PAIRS + covering(LIMITED, 2)]
GRID = QUICK + [{**PLAIN, **choice} for choice in TRIPLES]
MIXES: dict[str, dict[str, float]] = {
    "repeat": {"apps": 3, "texts": 2},
    "weight": {"apps": 1, "pairs": 2, "chats": 0.5, "texts": 1},
}
"""What the sources say; no weight leaves anything out here, since none has a `repeat`."""
FILTERS = {"all": {"min_tokens": 12, "max_tokens": 150}, "apps": {"max_tokens": 100}, "chats": {"min_tokens": 40}}
"""Of all sources, and what two of them say themselves."""


def splits(choice: Row) -> tuple[str, int] | None:
    """Where documents are split, and the overlap; None where they are not."""
    at, dash, overlap = choice["overlong"].partition("-")
    return (at, int(overlap)) if dash else None


def changes_of(choice: Row) -> Row:
    split = splits(choice)
    how = {"overlong": "split", "split": dict(zip(("at", "overlap"), split, strict=True))} if split else {}
    return {
        "mask": choice["mask"],
        "keep_untrained": choice["keep_untrained"],
        "filter": FILTERS["all"] if choice["filter"] else {},
        "duplicates": choice["duplicates"],
        "truncate": {
            "max_length": LENGTH,
            "max_prompt_length": choice["max_prompt"],
            "max_completion_length": choice["max_completion"],
            "overlong": choice["overlong"],
            "keep": choice["keep"],
            **how,
        },
        "pack": {name: choice[name] for name in ("strategy", "align", "max_docs", "shuffle")},
        "holdout": {"fraction": 0.3, "by": choice["holdout"]} if choice["holdout"] else {},
        "output": {"format": choice["format"]},
    }


def name_of(choice: Row) -> str:
    return "-".join(str(value) for value in choice.values())


def test_the_grid_is_a_grid() -> None:
    assert 60 <= len(GRID) <= 120
    for axes in (AXES, LIMITED):
        for axis, values in axes.items():
            assert {choice[axis] for choice in GRID} >= {*values}


# --- the count ---


@dataclass(frozen=True)
class Piece:
    """One piece in a row."""

    start: int
    """Its first token, within the document."""
    end: int
    """One past its last one."""
    fresh: int
    """Its first token that is not in the piece before."""


@dataclass
class Counted:
    """What the shards hold, piece by piece."""

    pieces: dict[str, list[Piece]]
    """The pieces of each document, in order."""
    split: dict[str, str]
    copies: dict[str, int]
    """How often each document is there."""
    trained: Counter[str]
    heads: Counter[str]
    padding: Counter[str]


def count_shards(
    out: Path, corpus: Corpus, manifest: Manifest, choice: Row, read_rows: Callable[..., list[Row]]
) -> Counted:
    """Every token of every row, held against its document."""
    table = pq.read_table(out / "documents.parquet").to_pylist()
    by_id = {document.id: document for document in corpus.documents}
    names = {entry["doc_id"]: entry["id"] for entry in table}
    assert len(names) == len(table) == len({entry["id"] for entry in table})
    order = [document.id for document in corpus.documents]
    assert [order.index(entry["id"]) for entry in table] == sorted(order.index(entry["id"]) for entry in table)
    for entry in table:
        document = by_id[entry["id"]]
        place = entry["id"].partition("/")[2].split("/")[0]
        assert (entry["source"], entry["group"]) == (document.source, document.group)
        assert entry["tokens"] == len(document.ids)
        assert f"{entry['file']}:{entry['line']}" == place

    counted = Counted({}, {}, {}, Counter(), Counter(), Counter())
    found: dict[str, list[tuple[int, int, list[int]]]] = {}
    for split in manifest.splits:
        for row in read_rows(out, split):
            assert len(row["input_ids"]) <= LENGTH
            assert len(row["doc_ids"]) <= (choice["max_docs"] or LENGTH)
            at = 0
            for doc_id, start, size in zip(row["doc_ids"], row["doc_starts"], row["seq_lengths"], strict=True):
                document = by_id[names[doc_id]]
                assert size % choice["align"] == 0
                here = slice(at, at + size)
                ids, labels = row["input_ids"][here], row["labels"][here]
                high = document.limited(choice)[1]
                # Only a piece that is not followed by another has padding: the others may end anywhere.
                real = next(n for n in range(size, 0, -1) if ids[:n] == document.ids[start : min(start + n, high)])
                padding = size - real
                assert 0 <= padding < choice["align"]
                assert ids[real:] == [PAD] * padding
                assert row["position_ids"][here] == list(range(size))
                assert labels[real:] == [IGNORE_INDEX] * padding
                assert counted.split.setdefault(document.id, split) == split
                counted.padding[document.source] += padding
                found.setdefault(document.id, []).append((start, start + real, labels[:real]))
                at += size
            assert at == len(row["input_ids"])
    assert {*found} == {*names.values()}
    overlap = (splits(choice) or ("", 0))[1]
    for name, pieces in found.items():
        document = by_id[name]
        asked = document.asked(choice["mask"])
        before: Piece | None = None
        places = Counter((start, end) for start, end, _ in pieces)
        (copies,) = {*places.values()}  # of all pieces the same
        counted.copies[name] = copies
        for start, end, labels in sorted(pieces)[::copies]:
            assert sum(one == (start, end, labels) for one in pieces) == copies
            fresh = start
            if before is not None and before.end >= start:  # else that one is left out
                fresh = before.end
                assert fresh - start == min(overlap, before.end - before.start)
            elif start > document.limited(choice)[0]:
                fresh = start + overlap
            expected = [
                document.ids[place] if asked[place] and place >= fresh and place > start else IGNORE_INDEX
                for place in range(start, end)
            ]
            assert labels == expected
            before = Piece(start, end, fresh)
            counted.pieces.setdefault(name, []).append(before)
            counted.trained[document.source] += copies * sum(label != IGNORE_INDEX for label in labels)
            counted.heads[document.source] += copies * (asked[start] and fresh == start)
    return counted


def check_copies(corpus: Corpus, counted: Counted, choice: Row) -> None:
    """How often each document is there, as `repeat` says, or within one of what the weights ask."""
    trained = [one for one in corpus.documents if counted.split.get(one.id) == "train"]
    assert all(counted.copies[one] == 1 for one, split in counted.split.items() if split == "holdout")
    if choice["mix"] != "weight":
        often = MIXES["repeat"] if choice["mix"] else {}
        assert all(counted.copies[one.id] == often.get(one.source, 1) for one in trained)
        return
    stats, packed, longest = Counter[str](), Counter[str](), Counter[str]()
    for one in trained:
        size = sum(piece.end - piece.start for piece in counted.pieces[one.id])
        stats[one.source] += size
        packed[one.source] += counted.copies[one.id] * size
        longest[one.source] = max(longest[one.source], size)
    weights = MIXES["weight"]
    scale = max(stats[name] / weights[name] for name in stats)
    for name in stats:
        assert abs(packed[name] - scale * weights[name]) <= longest[name] / 2 + 1


def least_and_most(document: Document, choice: Row) -> tuple[int, int]:
    """(min_tokens, max_tokens) that the filters set for a document's source."""
    limits = {"min_tokens": 0, "max_tokens": 10**9}
    if choice["filter"]:
        limits.update(FILTERS["all"])
    if choice["filter"] == "by source":
        limits.update(FILTERS.get(document.source, {}))
    return limits["min_tokens"], limits["max_tokens"]


def why_not(document: Document, choice: Row, packed: bool) -> str | None:
    """Why a document is left out, duplicates apart.

    Args:
        packed: whether any piece of it is in the shards: what is left of one that is split is seen only there.
    """
    asked = document.asked(choice["mask"])
    low, high = document.limited(choice)
    least, most = least_and_most(document, choice)
    if len(asked) < least:
        return "min_tokens"
    if len(asked) > most:
        return "max_tokens"
    if not any(asked[1:]) and not choice["keep_untrained"]:
        return "untrained"
    if choice["overlong"] == "drop" and high - low > LENGTH:
        return "overlong"
    if not any(asked[low + 1 : high]) and not choice["keep_untrained"]:
        return "cut_untrained"
    if splits(choice) and high - low > LENGTH and not packed and sum(asked[low:high]) < 3:
        return "cut_untrained"
    return None


def expected_dropped(corpus: Corpus, choice: Row, counted: Counted) -> dict[str, str]:
    """The reason of every document that is left out."""
    out: dict[str, str] = {}
    seen: set[tuple[tuple[int, ...], int]] = set()
    for document in corpus.documents:
        reason = why_not(document, choice, document.id in counted.pieces)
        content = (tuple(document.ids), document.begin)
        if reason is None and choice["duplicates"] == "drop" and content in seen:
            reason = "duplicate"
        if reason is None:
            seen.add(content)
        else:
            out[document.id] = reason
    assert {*counted.pieces} == {document.id for document in corpus.documents} - {*out}
    return out


def turns_cut(document: Document, pieces: list[Piece], asked: list[bool]) -> int:
    """Cuts with a trained token on both sides, of the completion or of the prompt. A text has no turns.

    Where a prompt is trained it is the most that there can be: how it falls into turns is not looked at here.
    """
    if document.source == "texts":
        return 0
    places = {piece.fresh for piece in pieces} | {piece.end for piece in pieces}
    inside = [place for place in places if 0 < place < len(asked) and place != document.begin]
    if document.turns and not asked[0]:  # what the template writes behind the end of a turn is no part of it
        inside = [place for place in inside if document.ids[place - 1] != END]
    return sum(asked[place - 1] and asked[place] for place in inside)


def expected_ledger(
    source: str, corpus: Corpus, counted: Counted, dropped_because: dict[str, str], choice: Row
) -> SourceLedger:
    """The source's account, made from documents and shards alone."""
    mask, cuts = choice["mask"], choice["strategy"] in ("bfd_split", "wrapped")
    out = SourceLedger()
    out.bytes_read = sum(len(line.encode()) + 1 for line in corpus.lines[source])
    out.rows_read = len(corpus.lines[source])
    out.rows_rejected, out.rows_filtered = REJECTED[source], FILTERED[source]
    if choice["where"] and source == "texts":
        short = [line for line in corpus.lines[source] if 0 < len(json.loads(line).get("text", "")) <= 60]
        out.rows_filtered = {"where": len(short)}
    out.examples_skipped, out.rows_blank = SKIPPED[source], BLANK[source]
    mine = [document for document in corpus.documents if document.source == source]
    out.rows_used = len({document.id.split("/")[1] for document in mine})
    out.examples_made = len(mine) + sum(REFUSED[source].values())
    out.tokens_encoded = sum(len(one.ids) - one.special - one.ended for one in mine)
    dropped, created = Counter(REFUSED[source]), Counter[str]()
    tokens_dropped: Counter[str] = Counter()
    truncated: Counter[str] = Counter()
    packed: Counter[str] = Counter()
    for document in mine:
        asked = document.asked(mask)
        created.update(special=document.special, end_of_sequence=document.ended)
        out.asked_encoded += sum(asked)
        if document.id in dropped_because:
            dropped[dropped_because[document.id]] += 1
            tokens_dropped[dropped_because[document.id]] += len(asked)
            out.asked_dropped += sum(asked)
            continue
        packed[counted.split[document.id]] += 1
        out.turns_trained += document.turns if mask == "all" else document.answered
        pieces = counted.pieces[document.id]
        low, high = document.limited(choice)
        fresh = [place for piece in pieces for place in range(piece.fresh, piece.end)]
        assert len(fresh) == len({*fresh})
        copies = counted.copies[document.id]
        created["overlap"] += copies * sum(piece.fresh - piece.start for piece in pieces)
        created["repeats"] += (copies - 1) * len(fresh)
        out.asked_repeated += (copies - 1) * sum(asked[place] for place in fresh)
        out.examples_repeated += copies - 1
        left_out = sorted({*range(low, high)} - {*fresh})
        if splits(choice) and high - low > LENGTH:
            # Of the pieces, those are left out in which no label counts: an asked token may stand at their head.
            assert not left_out or not choice["keep_untrained"]
            assert not any(asked[place] and asked[place - 1] and place - 1 in left_out for place in left_out)
            out.examples_split += 1
        else:
            assert fresh == list(range(low, high))
            assert cuts or len(pieces) == 1
        tokens_dropped["untrained_piece"] += len(left_out)
        out.asked_dropped += sum(asked[place] for place in left_out)
        out.tokens_packed += copies * sum(piece.end - piece.start for piece in pieces)
        if document.source != "texts":
            if choice["max_prompt"] is not None:
                truncated["max_prompt_length"] += max(0, document.begin - choice["max_prompt"])
            if choice["max_completion"] is not None:
                completion = len(asked) - document.begin
                truncated["max_completion_length"] += max(0, completion - choice["max_completion"])
        truncated["all"] += len(asked) - (high - low)
        out.examples_truncated += high - low < len(asked)
        out.asked_truncated += sum(asked) - sum(asked[low:high])
        out.examples_without_labels += not any(
            asked[place] and place > piece.start for piece in pieces for place in range(piece.fresh, piece.end)
        )
        out.turns_cut += copies * turns_cut(document, pieces, asked)
    everything = truncated.pop("all", 0)
    truncated["max_length"] = everything - sum(truncated.values())
    out.tokens_packed += counted.padding[source]
    created["alignment"] += counted.padding[source]
    out.labels_trained, out.labels_head = counted.trained[source], counted.heads[source]
    out.labels_not_asked = out.tokens_packed - out.labels_trained - out.labels_head
    out.examples_packed, out.examples_dropped = dict(packed), dict(dropped)
    out.tokens_dropped = {name: count for name, count in tokens_dropped.items() if count}
    out.tokens_created = {name: count for name, count in created.items() if count}
    out.tokens_truncated = {name: count for name, count in truncated.items() if count}
    # Before and after what the assistant says, and after the token that ends its turn; or where a completion begins.
    out.boundaries = sum(one.begin > one.special if source == "pairs" else 3 * one.turns for one in mine)
    return out


@pytest.mark.parametrize(
    "choice", [pytest.param(one, id=name_of(one), marks=() if one in QUICK else pytest.mark.slow) for one in GRID]
)
def test_everything_is_accounted_for(
    corpus: Corpus, tmp_path: Path, choice: Row, read_rows: Callable[..., list[Row]]
) -> None:
    out = tmp_path / "out"
    config = corpus.config(out, **changes_of(choice))
    if choice["filter"] == "by source":
        for source in config["sources"]:
            source["filter"] = FILTERS.get(source["name"], {})
    if choice["where"]:
        config["sources"][3]["where"] = choice["where"]
        corpus = replace(corpus, documents=[one for one in corpus.documents if not 0 < len(one.text) <= 60])
    for source in config["sources"]:
        if source["name"] in MIXES.get(choice["mix"], {}):
            source[choice["mix"]] = MIXES[choice["mix"]][source["name"]]
    manifest = packtrain.run(config)
    counted = count_shards(out, corpus, manifest, choice, read_rows)
    table = pq.read_table(out / "documents.parquet").to_pylist()
    dropped = expected_dropped(corpus, choice, counted)
    check_copies(corpus, counted, choice)
    for source, entry in manifest.ledger.sources.items():
        expected = expected_ledger(source, corpus, counted, dropped, choice)
        if choice["mask"] == "all":  # this test does not know where the turns of a prompt begin
            assert (
                expected_ledger(source, corpus, counted, dropped, {**choice, "mask": "completion"}).turns_cut
                <= (entry.turns_cut)
                <= expected.turns_cut
            )
            expected.turns_cut = entry.turns_cut
        assert entry == expected
        for what, left, right in entry.equations():
            assert left == right, what
    total = manifest.ledger.total()
    assert {*manifest.splits} == ({"train", "holdout"} if choice["holdout"] else {"train"})
    records = list(manifest.splits.values())
    assert total.tokens_packed == sum(record.tokens for record in records)
    assert total.labels_trained == sum(record.trained for record in records) > 100
    for record in records:
        assert sum(window.rows for window in record.windows) == record.rows
    if choice["holdout"]:
        assert min(total.examples_packed.values()) > 5
    if choice["holdout"] == "group":
        groups = {entry["id"]: (entry["source"], entry["group"]) for entry in table if entry["group"]}
        sides: dict[tuple[str, str], set[str]] = {}
        for name, group in groups.items():
            sides.setdefault(group, set()).add(counted.split[name])
        assert len(sides) >= 6
        assert all(len(side) == 1 for side in sides.values())
    found = verify(out, deep=True)
    assert found.sound, found.findings
    assert found.tokens == total.tokens_packed


def test_a_masked_example_is_dropped_or_kept(corpus: Corpus, tmp_path: Path) -> None:
    """Two of the chats end with the user; nothing in them is a completion. Dropped or kept, they are counted."""
    config = corpus.config(tmp_path / "dropped", truncate={"max_length": 1024})
    entry = packtrain.run(config).ledger.sources["chats"]
    assert entry.examples_dropped == {"untrained": 2}
    assert entry.examples_without_labels == 0
    kept = packtrain.run({**config, "out": str(tmp_path / "kept"), "keep_untrained": True}).ledger.sources["chats"]
    assert kept.examples_dropped == {}
    assert kept.examples_without_labels == 2
    assert kept.examples_packed["train"] == entry.examples_packed["train"] + 2
    assert kept.labels_trained == entry.labels_trained


def test_a_completion_that_truncation_takes_is_counted(corpus: Corpus, tmp_path: Path) -> None:
    """A prompt of more than a row, then `lost`: kept from the start it would train nothing, from the end it does."""
    config = corpus.config(tmp_path / "start")
    entry = packtrain.run(config).ledger.sources["pairs"]
    assert entry.examples_dropped["cut_untrained"] == 1
    assert entry.examples_without_labels == 0
    kept = packtrain.run({**config, "out": str(tmp_path / "kept"), "keep_untrained": True}).ledger.sources["pairs"]
    assert "cut_untrained" not in kept.examples_dropped
    assert kept.examples_without_labels >= 1
    end = {**config, "out": str(tmp_path / "end"), "truncate": {"max_length": LENGTH, "keep": "end"}}
    assert "cut_untrained" not in packtrain.run(end).ledger.sources["pairs"].examples_dropped


def test_a_single_token_has_no_label(
    make_tokenizer: Callable[..., Path], new_cache: Callable[[Path], Path], tmp_path: Path
) -> None:
    """It is selected by the mask, but comes first: it is dropped as untrained, or kept and counted as without
    labels."""
    tokenizer = make_tokenizer("tiny")
    (tmp_path / "texts.jsonl").write_text('{"text": "<|im_end|>"}\n{"text": "and so on"}\n')
    config = {
        "out": str(tmp_path / "dropped"),
        "cache": str(new_cache(tokenizer)),
        "tokenizer": {"path": str(tokenizer)},
        "sources": [{"name": "texts", "format": "text", "path": str(tmp_path / "texts.jsonl")}],
        "run": {"workers": 1, "report": False},
    }
    entry = packtrain.run(config).ledger.sources["texts"]
    assert (entry.examples_dropped, entry.tokens_dropped) == ({"untrained": 1}, {"untrained": 1})
    assert (entry.asked_dropped, entry.examples_without_labels, entry.labels_head) == (1, 0, 1)
    kept = packtrain.run({**config, "out": str(tmp_path / "kept"), "keep_untrained": True}).ledger.sources["texts"]
    assert (kept.examples_dropped, kept.examples_without_labels, kept.labels_head) == ({}, 1, 2)
    assert kept.labels_trained == entry.labels_trained > 0


def test_rejects_name_every_row(corpus: Corpus, tmp_path: Path) -> None:
    """rejects.jsonl holds each rejected row and refused example once, with its place and a reason of the ledger."""
    packtrain.run(corpus.config(tmp_path / "out"))
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    reasons = Counter((reject["source"], reject["reason"]) for reject in rejects)
    expected: Counter[tuple[str, str]] = Counter()
    for source in REJECTED:
        for reason, count in [*REJECTED[source].items(), *REFUSED[source].items()]:
            expected[source, reason] += count
    assert reasons == expected
    broken = next(reject for reject in rejects if reject["reason"] == "invalid_json")
    assert corpus.lines["pairs"][broken["line"] - 1] == '{"prompt": "no", "comple'
    partly = next(reject for reject in rejects if "example" in reject)
    assert (partly["source"], partly["line"], partly["example"]) == ("apps", 10, 0)


def test_overlong_can_be_an_error(corpus: Corpus, tmp_path: Path) -> None:
    refuse = {"max_length": LENGTH, "overlong": "error"}
    with pytest.raises(
        InputError, match=r"[0-9]+ examples? (is|are) longer than truncate.max_length \(96\).*source 'apps'"
    ):
        packtrain.run(corpus.config(tmp_path / "out", truncate=refuse))
    assert not (tmp_path / "out/manifest.json").exists()
    enough = {"max_length": 1024, "overlong": "error"}
    manifest = packtrain.run(corpus.config(tmp_path / "other", truncate=enough))
    assert manifest.ledger.total().tokens_truncated == {}


def test_nothing_left_is_an_error(corpus: Corpus, tmp_path: Path) -> None:
    config = corpus.config(tmp_path / "out")
    config["sources"] = [source for source in config["sources"] if source["name"] == "texts"]
    config["sources"][0]["keys"] = {"text": "txet"}
    with pytest.raises(InputError, match=r"None of the 34 rows looked at fits format text"):
        packtrain.run(config)
    assert not (tmp_path / "out/manifest.json").exists()
    config["sources"][0] |= {"format": "prompt_completion", "keys": {}}
    with pytest.raises(InputError, match=r"rows of source texts fit format text, not prompt_completion: .* leave the"):
        packtrain.run(config)


def test_a_split_without_a_row_can_be_opened(corpus: Corpus, tmp_path: Path) -> None:
    from datasets import load_from_disk

    manifest = packtrain.run(corpus.config(tmp_path / "out", holdout={"fraction": 1e-9}))
    assert manifest.splits["holdout"].rows == 0
    assert manifest.splits["train"].rows > 20
    assert verify(tmp_path / "out", deep=True).sound
    opened = load_from_disk(str(tmp_path / "out"))
    assert {split: len(dataset) for split, dataset in opened.items()} == {
        "train": manifest.splits["train"].rows,
        "holdout": 0,
    }


# --- windows ---


@pytest.fixture
def many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "BLOCK_BYTES", 400)


@pytest.mark.usefixtures("many_blocks")
def test_windows_hold_every_document_once(corpus: Corpus, tmp_path: Path, read_rows: Callable[..., list[Row]]) -> None:
    """Planned a thousand tokens at a time, from blocks of which some give no document at all, the last one too."""
    config = corpus.config(tmp_path / "out", pack={"window_tokens": 1000, "shuffle": False})
    config["cache"] = str(tmp_path / "cache")
    shutil.copytree(corpus.folder / "cache/tokenizers", tmp_path / "cache/tokenizers")
    texts = tmp_path / "texts-1.jsonl"
    texts.write_text((corpus.folder / "texts-1.jsonl").read_text() + '{"no": "text"}\n' * 100)
    config["sources"][3]["path"] = [str(texts)]
    choice = {**PLAIN, **{name: values[0] for name, values in AXES.items()}}
    manifest = packtrain.run(config)
    windows = manifest.splits["train"].windows
    assert len(windows) >= 4
    assert sum(window.rows for window in windows) == manifest.splits["train"].rows
    assert sum(window.tokens for window in windows) == manifest.ledger.total().tokens_packed
    documents = [document for document in corpus.documents if not document.id.startswith("texts/texts-2")]
    fewer = Corpus(corpus.folder, corpus.tokenizer, documents)
    counted = count_shards(tmp_path / "out", fewer, manifest, choice, read_rows)
    assert all(len(pieces) == 1 for pieces in counted.pieces.values())
    assert len(counted.pieces) == sum(manifest.ledger.total().examples_packed.values()) > 50


@pytest.mark.usefixtures("many_blocks")
def test_windows_are_stratified(
    make_tokenizer: Callable[..., Path],
    tmp_path: Path,
    new_cache: Callable[[Path], Path],
    read_rows: Callable[..., list[Row]],
) -> None:
    """A window has of each source what the whole has, though one source is three times the other."""
    tokenizer = make_tokenizer("tiny")
    for name, count in (("large", 180), ("small", 60)):
        lines = [json.dumps({"text": f"{name} {number:04} {words(4, number)}"}) for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    manifest = packtrain.run(
        {
            "out": str(tmp_path / "out"),
            "cache": str(new_cache(tokenizer)),
            "tokenizer": {"path": str(tokenizer)},
            "sources": [
                {"name": name, "format": "text", "path": str(tmp_path / f"{name}.jsonl")} for name in ("large", "small")
            ],
            "truncate": {"max_length": 64},
            "pack": {"window_tokens": 1200, "shuffle": False},
            "run": {"workers": 1, "report": False},
        }
    )
    sources = {
        entry["doc_id"]: entry["source"] for entry in pq.read_table(tmp_path / "out/documents.parquet").to_pylist()
    }
    rows = iter(read_rows(tmp_path / "out"))
    shares = []
    for window in manifest.splits["train"].windows[:-1]:  # the last one is what is left
        mine = [sources[doc_id] for row in itertools.islice(rows, window.rows) for doc_id in row["doc_ids"]]
        shares.append(mine.count("small") / len(mine))
    assert len(shares) >= 3
    assert all(0.1 < share < 0.4 for share in shares), shares


@given(data=st.data())
@examples(40)
def test_any_windows_hold_every_document_once(
    data: st.DataObject, plan_windows: Callable[..., list[WindowPlan]]
) -> None:
    """Parts of any size, empty ones too; documents that are left out; windows smaller than a part."""
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=9))
    sources = data.draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes)).map(sorted))
    count = sum(sizes)
    lengths = np.array(data.draw(st.lists(st.integers(0, 8), min_size=count, max_size=count)), np.int32)
    limit = data.draw(st.integers(1, 60))
    part_starts = np.cumsum([0, *sizes]).astype(np.int64)
    config = RunConfig.model_validate(
        {
            "out": "unused",
            "tokenizer": {"path": "unused"},
            "sources": [{"name": "s", "format": "text", "path": "unused"}],
            "truncate": {"max_length": 8},
            "pack": {"window_tokens": limit, "shuffle": data.draw(st.booleans())},
            "seed": data.draw(st.integers(0, 3)),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        windows = plan_windows(store, config, sizes, sources, lengths)
        pieces = [
            pa.ipc.open_file(pa.BufferReader(store.read(f"{window.name}-pieces.arrow"))).read_all().to_pylist()
            for window in windows
        ]
    everything = [piece["doc_id"] for window in pieces for piece in window]
    assert sorted(everything) == np.flatnonzero(lengths).tolist()
    owners = [
        {int(np.searchsorted(part_starts, piece["doc_id"], side="right")) - 1 for piece in each} for each in pieces
    ]
    assert all(not one & other for one, other in itertools.combinations(owners, 2))
    for window, each, parts in zip(windows, pieces, owners, strict=True):
        tokens = sum(piece["length"] for piece in each)
        assert tokens <= limit or len(parts) == 1
        assert window.certificate is not None
        assert window.certificate.tokens == tokens
        assert all(piece["length"] == lengths[piece["doc_id"]] for piece in each)
        assert [shard.first_row for shard in window.shards] == [0]


# --- damage ---


@pytest.fixture(scope="module")
def sound(make_tokenizer: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder of several shards."""
    folder = tmp_path_factory.mktemp("damage")
    lines = [json.dumps({"text": f"{number} {words(40, number)}"}) for number in range(200)]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    manifest = packtrain.run(
        {
            "out": str(folder / "out"),
            "tokenizer": {"path": str(make_tokenizer("tiny"))},
            "sources": [{"name": "texts", "format": "text", "path": str(folder / "texts.jsonl")}],
            "truncate": {"max_length": 512},
            "output": {"shard_bytes": 1 << 16},
            "run": {"workers": 1, "report": False},
        }
    )
    assert len(manifest.splits["train"].shards) >= 3
    assert verify(folder / "out", deep=True).sound
    return folder / "out"


@dataclass(frozen=True)
class Damage:
    """What happens to the second shard, and what `verify` must say of it."""

    do: Callable[[Path], object]
    says: str
    deep: bool = False
    """Whether only a look at every byte can find it for certain."""


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0x10
    path.write_bytes(data)


def swap(path: Path) -> None:
    other = next(one for one in sorted(path.parent.iterdir()) if one.name != path.name)
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


DAMAGES = {
    "bit in the tokens": Damage(lambda path: flip(path, 0.2), "does not match its hash in the manifest", deep=True),
    "bit at the end": Damage(lambda path: flip(path, 0.999), "does not match its hash in the manifest", deep=True),
    "bit in the schema": Damage(lambda path: flip(path, 0.001), "does not match its hash in the manifest", deep=True),
    "cut": Damage(lambda path: path.write_bytes(path.read_bytes()[:-1000]), "bytes, but the manifest says"),
    "emptied": Damage(lambda path: path.write_bytes(b""), "has 0 bytes, but the manifest says"),
    "longer": Damage(lambda path: path.write_bytes(path.read_bytes() + b"\0"), "bytes, but the manifest says"),
    "missing": Damage(lambda path: path.unlink(), "is missing"),
    "two swapped": Damage(swap, "the manifest says", deep=True),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_verify_names_a_damaged_shard(sound: Path, tmp_path: Path, name: str) -> None:
    damage = DAMAGES[name]
    shutil.copytree(sound, tmp_path / "out")
    shard = open_dataset(sound).manifest.splits["train"].shards[1].name
    damage.do(tmp_path / "out" / shard)
    found = verify(tmp_path / "out", deep=True).findings
    assert any(finding.where == shard and damage.says in finding.what for finding in found), found
    wrong = {finding.where for finding in found}
    assert wrong == {shard} or (name == "two swapped" and len(wrong) == 2)
    if not damage.deep:
        assert [finding.where for finding in verify(tmp_path / "out").findings] == [shard]


def test_verify_finds_a_shard_that_is_not_ours(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "out")
    first = min((tmp_path / "out/shards").iterdir())
    shutil.copy(first, first.with_name("00009-0123456789abcdef.arrow"))
    (finding,) = verify(tmp_path / "out").findings
    assert finding.where == "shards/00009-0123456789abcdef.arrow"
    assert "is not in the manifest" in finding.what


@pytest.mark.parametrize("name", ["documents.parquet", "rejects.jsonl", "state.json", "dataset_info.json"])
def test_verify_finds_damage_beside_the_shards(sound: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(sound, tmp_path / "out")
    (tmp_path / "out" / name).write_bytes((tmp_path / "out" / name).read_bytes() + b" ")
    assert [finding.where for finding in verify(tmp_path / "out").findings] == [name]
    (tmp_path / "out" / name).unlink()
    assert [str(finding) for finding in verify(tmp_path / "out").findings] == [f"{name}: is missing"]


def test_a_changed_manifest_is_refused(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "out")
    path = tmp_path / "out/manifest.json"
    content = json.loads(path.read_text())
    content["splits"]["train"]["shards"].pop()
    path.write_text(json.dumps(content))
    with pytest.raises(IntegrityError, match="was changed after it was written"):
        verify(tmp_path / "out")
    path.unlink()
    with pytest.raises(InputError, match=r"has no manifest.json"):
        verify(tmp_path / "out")
