"""Corpora and configurations that hypothesis makes, with everything in them that a run counts apart."""

import json
from collections import Counter
from typing import Any

from hypothesis import strategies as st

from tests import kit
from tests.oracle.accounts import Lines
from tests.oracle.packer import Row, solutions

LENGTH = 96
"""Tokens of a packed row: a multiple of all that pieces and rows are padded to."""
MARKED = kit.REFUSE + kit.GENERATION
PLAIN = kit.REFUSE + kit.CHATML


def sentence(count: int, salt: int) -> str:
    """Words, in a few lines and paragraphs where there are many."""
    ends = (" ", " ", " ", "\n", " ", "\n\n")
    return "".join(
        kit.WORDS[(salt * 7 + place * (salt % 5 + 1)) % len(kit.WORDS)]
        + ends[(salt + place // 5) % 6 * (place % 5 == 4)]
        for place in range(count)
    ).rstrip()


short = st.builds(sentence, st.integers(1, 25), st.integers(0, 30))
long = st.builds(sentence, st.integers(25, 120), st.integers(0, 30))
odd = st.text(st.sampled_from("aé中🙂 \n\t'<|1e\u0301ſ"), min_size=1, max_size=12).filter(
    lambda text: bool(text.strip())
)
said = short | short | long | odd
scores = st.sampled_from([1, 1, 0.5, 3])


def scored(row: st.SearchStrategy[Row], weighted: bool) -> st.SearchStrategy[Row]:
    """The rows, with a column of weights where there are any."""
    return st.builds(lambda one, score: one | {"score": score}, row, scores | st.none()) if weighted else row


texts = st.fixed_dictionaries({"text": said | st.just("the same in some rows, and long enough to be trained")})
pairs = st.fixed_dictionaries(
    {
        "prompt": st.just("") | st.builds(lambda text, end: text + end, said, st.sampled_from(["\n", "", " "])),
        "completion": said,
    }
)
problems = st.fixed_dictionaries(
    {
        "id": st.integers(0, 5),
        "question": short.map(str.strip),
        "solutions": st.lists(
            st.sampled_from(["print(1)", "print(1)\n", " ", "print(2)", "for it in range(9):\n  it"])
        ).map(json.dumps),
    }
)


@st.composite
def chats(draw: st.DrawFn, weighted: bool = False) -> Row:
    """A conversation of one to three questions, of which the last one may have no answer."""
    roles = ["system"] * draw(st.booleans()) + ["user", "assistant"] * draw(st.integers(1, 3))
    messages: list[Row] = [
        {"role": role, "content": draw(said)} for role in roles[: len(roles) - draw(st.sampled_from([0, 0, 0, 1]))]
    ]
    for message in messages:
        if message["role"] == "assistant":
            what = draw(st.integers(0, 7))
            if what == 0:
                message["train"] = False
            elif weighted and what < 4:
                message["weight"] = (0, 0.5, 2)[what - 1]
    return {"messages": messages}


BAD: dict[str, list[tuple[Any, tuple[str, str]]]] = {
    "texts": [({"text": ""}, ("rejected", "empty")), ({"body": "no"}, ("rejected", "missing_key"))],
    "pairs": [
        ({"prompt": "no", "completion": ""}, ("rejected", "empty_completion")),
        ({"prompt": "no"}, ("rejected", "missing_key")),
        ({"prompt": "no", "completion": [{"role": "assistant", "content": "mixed"}]}, ("rejected", "wrong_type")),
        ({"prompt": "long", "completion": "long " * 1000}, ("rejected", "row_too_long")),
        ([1, 2], ("rejected", "not_an_object")),
        (b'{"prompt": "no", "comple', ("rejected", "invalid_json")),
        (b"", ("blank", "")),
    ],
    "chats": [
        ({"messages": []}, ("rejected", "empty")),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, ("rejected", "not_text")),
        ({"messages": [{"role": "user", "content": "FORBIDDEN"}]}, ("rejected", "template_error")),
        (b"  ", ("blank", "")),
    ],
    "apps": [
        ({"id": 9, "question": "Broken", "solutions": "[1, 2"}, ("rejected", "wrong_type")),
        ({"id": 9, "question": "None", "solutions": ""}, ("filtered", "no_solution")),
    ],
}
"""Lines that give no example, and what they count as."""


@st.composite
def lines_of(draw: st.DrawFn, source: str, weighted: bool) -> tuple[Lines, dict[int, Row]]:
    """The lines of a source, and the rows of those that are used, by line."""
    rows = {"texts": scored(texts, weighted), "pairs": scored(pairs, weighted), "apps": problems}
    good = draw(st.lists(rows.get(source, chats(weighted)), min_size=3, max_size=14))
    made: list[tuple[bytes, tuple[str, str] | None]] = []
    for row in good:
        empty = source == "apps" and not solutions(row)
        made.append((json.dumps(row, ensure_ascii=False).encode(), ("filtered", "no_solution") if empty else None))
    for bad, kind in draw(st.lists(st.sampled_from(BAD[source]), max_size=3)):
        if isinstance(bad, dict) and weighted:
            bad = bad | {"score": None}
        line = bad if isinstance(bad, bytes) else json.dumps(bad).encode()
        made.insert(draw(st.integers(1, len(made))), (line, kind))  # a first line of `[` would begin an array
    used = {number: json.loads(line) for number, (line, kind) in enumerate(made, 1) if kind is None}
    skipped: Counter[str] = Counter()
    if source == "apps":
        for row in used.values():
            codes = json.loads(row["solutions"])
            skipped["empty"] += sum(not code.strip() for code in codes)
            skipped["duplicate"] += sum(bool(code.strip()) for code in codes) - len(solutions(row))
    return Lines(made, skipped), used


OWN_MASKS: list[Row] = [{}, {}, {"policy": "last_assistant"}, {"policy": "all"}, {"train_end": False}]
FORMATS = {"texts": "text", "pairs": "prompt_completion", "chats": "messages", "apps": "apps"}


@st.composite
def configurations(draw: st.DrawFn) -> Row:
    """Everything of a configuration that decides what is written, with every key that the packer looks at."""
    strategy = draw(st.sampled_from(["bfd", "bfd", "tight", "bfd_split", "wrapped", "none"]))
    cuts = strategy in ("bfd_split", "wrapped")
    overlong = "truncate" if cuts else draw(st.sampled_from(["truncate", "drop", "split", "split"]))
    split: Row = {
        "at": draw(st.sampled_from(["turns", "paragraphs", "tokens"])),
        "overlap": draw(st.sampled_from([0, 1, 9])),
    }
    mix = None if strategy == "wrapped" else draw(st.sampled_from([None, None, "repeat", "weight"]))
    sources = draw(st.lists(st.sampled_from(sorted(FORMATS)), min_size=1, max_size=4, unique=True))
    pack: Row = {"strategy": strategy, "shuffle": draw(st.booleans()), "align": 1, "max_docs": None}
    parallel = draw(st.sampled_from([None, None, ("thd", 2, 1), ("thd", 2, 3), ("ring", 4, 1), ("ulysses", 2, 2)]))
    if strategy != "wrapped":
        pack["align"], pack["max_docs"] = draw(st.sampled_from([1, 1, 8])), draw(st.sampled_from([None, None, 2]))
    if parallel and not (strategy == "wrapped" and parallel[0] == "thd"):
        pack["parallel"] = dict(zip(("layout", "cp", "tp"), parallel, strict=True))
    return {
        "sources": [
            {
                "name": name,
                "format": FORMATS[name],
                "path": f"{name}.jsonl",
                "max_row_bytes": 4096,
                "keys": {"weight": "score"} if name in ("texts", "pairs") else {},
            }
            | ({mix: draw(st.sampled_from([1, 2, 3] if mix == "repeat" else [0.5, 1, 2]))} if mix else {})
            | ({"loss_weight": draw(st.sampled_from([1.0, 2.5]))})
            | ({"mask": draw(st.sampled_from(OWN_MASKS))} if name != "texts" else {})
            for name in sources
        ],
        "mask": {
            "policy": draw(st.sampled_from(["completion", "assistant", "last_assistant", "all"])),
            "train_end": draw(st.sampled_from([True, True, False])),
        },
        "truncate": {
            "max_length": LENGTH,
            "overlong": overlong,
            "keep": "start" if cuts else draw(st.sampled_from(["start", "end"])),
            **({"split": split} if overlong == "split" else {}),
        },
        "filter": {
            "min_tokens": draw(st.sampled_from([None, None, 8])),
            "max_tokens": draw(st.sampled_from([None, None, 120])),
        },
        "holdout": draw(st.sampled_from([{}, {}, {"fraction": 0.3}, {"fraction": 0.3, "by": "example"}])),
        "duplicates": draw(st.sampled_from(["keep", "keep", "drop"])),
        "keep_untrained": draw(st.booleans()),
        "loss": {"normalize": draw(st.sampled_from(["token", "token", "document"]))},
        "pack": pack,
        "seed": draw(st.integers(0, 3)),
        "tokenizer": {"chat_template": draw(st.sampled_from([PLAIN, MARKED]))},
    }  # fmt: skip
