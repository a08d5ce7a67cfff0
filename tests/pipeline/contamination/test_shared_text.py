"""What counts as shared text: planted overlaps of each kind and nothing else, and exactly what sets of tuples find."""

import json
import os
import random
import re
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests import kit

Row = dict[str, Any]
NOUNS = (
    *("harbour", "lantern", "orchard", "pigeon", "quarry", "ribbon", "saddle", "timber", "umbrella", "violin"),
    *("walnut", "yacht", "zipper", "anchor", "basket", "candle", "dragon", "engine", "falcon", "garden", "hammer"),
    *("island", "jacket", "kettle", "ladder", "magnet", "needle", "office", "pepper", "rocket", "silver", "tunnel"),
)
PROBLEM = (
    "Thirty pigeons live in a harbour, and every morning seven of them carry a silver ribbon to the lantern on the "
    "island; how many mornings pass before each pigeon has carried one ribbon and a candle from the orchard to a wall?"
)
SHORT = "Which anchor sinks below the old quarry?"
ANSWERED = (
    "Each morning seven pigeons fly, so after four mornings twenty eight have flown, and on the fifth morning the last "
    "two pigeons carry their ribbons together with five others that fly a second time"
)
COMMON_TEXTS, PHRASE, PHRASE_TEXTS, PHRASE_SHARE, SHORTEST = 10, 4, 3, 0.01, 5
"""The rules, as docs/data.md says them."""


def found(folder: Path, texts: list[Any], rows: list[Any], ngram: int = 13) -> list[Row]:
    """The hits of training texts, or rows, with evaluation questions, or rows; each has its places from 0."""
    train = [one if isinstance(one, dict) else {"text": one} for one in texts]
    test = [one if isinstance(one, dict) else {"text": one} for one in rows]
    kit.write(folder / "train.jsonl", train)
    kit.write(folder / "test.jsonl", test)
    (folder / "hits.jsonl").unlink(missing_ok=True)
    words = ["--input", "train.jsonl", "--against", "test.jsonl", "--out", "hits.jsonl", "--set", "run.workers=1"]
    done = kit.cli("contamination", *words, "--set", f"contamination.ngram={ngram}", cwd=folder)
    assert done.code == 0, done.err
    hits = [json.loads(line) for line in (folder / "hits.jsonl").read_text().splitlines()]
    return [hit | {"example": int(hit["id"].split(":")[1]) - 1, "row": hit["evaluation_line"] - 1} for hit in hits]


def matches(hits: list[Row]) -> list[tuple[int, int, str]]:
    """(example, evaluation row, how much of its text) of each hit."""
    names = ("whole" if hit["share"] == 1 else "most" if hit["share"] >= 0.8 else "part" for hit in hits)
    return [(hit["example"], hit["row"], name) for hit, name in zip(hits, names, strict=True)]


def filler(words: int, seed: int = 0) -> str:
    """Text of other words."""
    chance = random.Random(seed)
    return " ".join(chance.choices(["alpha", "bravo", "carbon", "delta", "echo", "foxtrot", "gamma", "hotel"], k=words))


def words_in(text: str, first: int, count: int) -> str:
    """Some words of a text, with its punctuation."""
    return " ".join(text.split()[first : first + count])


def some_nouns(seed: int) -> str:
    return " ".join(random.Random(seed).sample(NOUNS, 20))


PLANTED = {
    "verbatim": f"{filler(30)} {PROBLEM} {filler(20)}",
    "case": PROBLEM.upper(),
    "punctuation": re.sub(r"[,;?]", " -- ", PROBLEM),
    "whitespace": "\t".join(PROBLEM.split()),
    "line ends": "\r\n".join(PROBLEM.split()),
    "markup": "**" + "** _".join(PROBLEM.split()) + "_",
    "tags": '<p class="a">' + "</em> <strong>".join(PROBLEM.split()) + "</strong><br/></p>",
    "entities": PROBLEM.replace(" ", "&nbsp;").replace(",", "&#44;&quot;").replace("?", "&lt;&amp;"),
    "full width": "".join(chr(ord(char) + 0xFEE0) if char.isalpha() else char for char in PROBLEM),
    "soft hyphens": PROBLEM.replace("pigeon", "pi\u00adgeon"),
    "quotes": f"\u201c{PROBLEM}\u201d\u2014{filler(3)}\u2026",
}


def test_planted_overlaps_are_found(tmp_path: Path) -> None:
    pieces = [f"{filler(40)} {words_in(PROBLEM, 5, words)} {filler(40)}" for words in (13, 12)]
    hits = found(tmp_path, [*PLANTED.values(), *pieces], [filler(60, 3), PROBLEM, SHORT])
    assert matches(hits) == [*((at, 1, "whole") for at in range(len(PLANTED))), (len(PLANTED), 1, "part")]
    assert all(hit["shared"].startswith("thirty pigeons live in a harbour") for hit in hits[:-1])
    assert hits[-1]["shared"] == "harbour and every morning seven of them carry a silver ribbon to the"


def test_pages_of_the_web_and_their_plain_text(tmp_path: Path) -> None:
    """Code is no markup: what stands between `<` and `>` counts unless it is an element."""
    page = f"<div><p>{PROBLEM.replace('seven of', '<b>seven</b>&nbsp;of')}</p>\n<a href='https://a.b/c?d=e'>{SHORT}</a></div>"
    code = "while left<right and total>count: push vector<int> stack of numbers then call solve with every&other value"
    hits = found(tmp_path, [PROBLEM, SHORT, page, code], [page, code, PROBLEM])
    assert [(hit["example"], hit["row"]) for hit in hits] == [(0, 0), (0, 2), (2, 0), (2, 2), (3, 1)]
    assert hits[-1]["shared"] == " ".join(re.findall(r"\w+", code))


def test_prompt_and_answer_are_searched_alone(tmp_path: Path) -> None:
    halves = words_in(PROBLEM, 0, 12), words_in(PROBLEM, 12, 12)
    turns = [{"role": role, "content": half} for role, half in zip(("user", "assistant"), halves, strict=True)]
    assert found(tmp_path, [{"messages": turns}, *halves], [PROBLEM]) == []
    assert len(found(tmp_path, [{"messages": turns}], [PROBLEM], ngram=12)) == 1


def test_messages_and_calls(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": PROBLEM}}}
    asked = {"role": "user", "content": words_in(PROBLEM, 0, 10)}
    rows = [
        [asked, {"role": "user", "content": words_in(PROBLEM, 10, 99)}, {"role": "assistant", "content": "well"}],
        [asked, {"role": "assistant", "content": "", "tool_calls": [call]}],
        [asked, {"role": "assistant", "content": "x", "reasoning_content": PROBLEM}],
    ]
    assert matches(found(tmp_path, [{"messages": row} for row in rows], [PROBLEM])) == [
        (at, 0, "whole") for at in range(3)
    ]


def test_short_questions_are_found_whole_or_not_at_all(tmp_path: Path) -> None:
    rows = [SHORT, "Which anchor sinks?", "Which anchor sinks below the old harbour wall?"]
    texts = [f"{filler(9)} which ANCHOR sinks, below the old quarry {filler(9)}", "Which anchor sinks below the old"]
    assert matches(found(tmp_path, texts, rows)) == [(0, 0, "whole")]
    assert found(tmp_path, [SHORT], [{"question": PROBLEM, "answer": SHORT}]) == [], "a short answer says nothing"


def test_answers_need_half_of_their_ngrams(tmp_path: Path) -> None:
    count = len(ANSWERED.split()) - 12
    lengths = (13, 12 + count // 2 - 1, 12 + (count + 1) // 2, 99)
    texts = [f"{filler(5)} {words_in(ANSWERED, 0, words)}" for words in lengths]
    changed = PROBLEM.split()
    del changed[-2]
    hits = found(tmp_path, [*texts, " ".join(changed)], [{"question": PROBLEM, "answer": ANSWERED}])
    assert matches(hits) == [(2, 0, "part"), (3, 0, "whole"), (4, 0, "most")]
    assert [hit["kind"] for hit in hits] == ["answer", "answer", "prompt"]


def test_frames_common_and_plain_runs_do_not_count(tmp_path: Path) -> None:
    frame = "the first line of the input contains a single integer {} which is the number of test cases to follow"
    rows = [f"{filler(25, at)} {frame.format(at * 7)} {some_nouns(at)}" for at in range(40)]
    texts = [f"{filler(9)} {frame.format(1)} {filler(9)}", f"{frame.format(1)} {some_nouns(7)}"]
    assert [(hit["example"], hit["row"]) for hit in found(tmp_path, texts, rows)] == [(1, 7)]
    piece = words_in(PROBLEM, 0, 20)
    assert len(found(tmp_path, [piece], [f"{piece} {some_nouns(at)}" for at in range(PHRASE_TEXTS)])) == PHRASE_TEXTS
    assert found(tmp_path, [piece], [f"{piece} {some_nouns(at)}" for at in range(COMMON_TEXTS + 1)]) == []
    plain = [
        " ".join(map(str, range(40))),
        "for i in range(n): for j in range(m): a[i][j] = b[j][i] + c[i] - d[j] " * 2,
        "yes no " * 20,
    ]
    assert found(tmp_path, plain, [f"{one} {PROBLEM} {some_nouns(at)}" for at, one in enumerate(plain)]) == []
    assert matches(found(tmp_path, plain, plain)) == [(at, at, "whole") for at in range(3)], "as a whole they do"


def runs_of(text: str, count: int) -> list[tuple[str, ...]]:
    """All runs of words."""
    words = text.split()
    return [tuple(words[at : at + count]) for at in range(len(words) - count + 1)]


def oracle(texts: list[str], rows: list[str], n: int) -> set[tuple[int, int, float]]:
    """(text, row, share of the row's n-grams), by sets of tuples."""
    half = (n + 1) // 2
    phrases = Counter(phrase for row in rows for phrase in set(runs_of(row, PHRASE)))
    frames = {phrase for phrase, often in phrases.items() if often > max(PHRASE_TEXTS, PHRASE_SHARE * len(rows))}
    held: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for number, row in enumerate(rows):
        begins = [at for at, phrase in enumerate(runs_of(row, PHRASE)) if phrase in frames]
        framed = {at + step for at in begins for step in range(PHRASE)}
        for at, gram in enumerate(runs_of(row, n)):
            telling = sum(len(word) > 1 for word in gram) >= half and len(set(gram)) >= half
            if telling and 2 * len(framed.intersection(range(at, at + n))) < n:
                held[gram].add(number)
    counts = Counter(row for some in held.values() if len(some) <= COMMON_TEXTS for row in some)
    had = {row for some in held.values() for row in some}
    shared: dict[tuple[int, int], set[tuple[str, ...]]] = defaultdict(set)
    for number, text in enumerate(texts):
        for gram in runs_of(text, n):
            for holder in held[gram] if len(held[gram]) <= COMMON_TEXTS else ():
                shared[number, holder].add(gram)
    whole = {
        (number, row, 1.0)
        for row, words in enumerate(map(str.split, rows))
        for number, text in enumerate(texts)
        if row not in had and len(words) >= SHORTEST and tuple(words) in runs_of(text, len(words))
    }
    return whole | {(text, row, round(len(grams) / counts[row], 4)) for (text, row), grams in shared.items()}


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_what_sets_of_tuples_find(tmp_path: Path, seed: int) -> None:
    """Also with a piece that many rows have, which is common or a frame in some."""
    chance = random.Random(seed)
    n, vocabulary = chance.randrange(SHORTEST, 9), [*NOUNS[: 4 + seed % 5], "a", "7"]

    def text(most: int) -> str:
        return " ".join(chance.choices(vocabulary, k=chance.randrange(1, most)))

    piece, held = text(13), chance.choice([0, 2, 4, 16])
    rows = list(dict.fromkeys(f"{text(26)} {piece}" if at < held else text(26) for at in range(16)))
    texts = [*(text(26) for _ in range(60)), piece]
    hits = found(tmp_path, texts, rows, n)
    assert {(hit["example"], hit["row"], hit["share"]) for hit in hits} == oracle(texts, rows, n)


def spoiled(text: str, chance: random.Random) -> str:
    """The same words with other case, separators and forms of Unicode."""
    said = [
        chance.choice([" ", "\n", ", ", " -- ", "!?", "<b>", "&nbsp;"]) + chance.choice([word, word.upper()])
        for word in text.split()
    ]
    return unicodedata.normalize(chance.choice(["NFC", "NFD", "NFKC", "NFKD"]), "".join(said))


def test_case_punctuation_and_forms_do_not_matter(tmp_path: Path) -> None:
    chance = random.Random(3)
    words = ["été", "straße", "日本語", "नमस्ते", "москва", "ǰab", "ﬁx", *NOUNS[:8]]
    texts = [" ".join(chance.choices(words, k=30)) for _ in range(40)]
    rows = [" ".join(chance.choices(words, k=20)) + " " + words_in(texts[at], 5, 12) for at in range(12)]

    def hits(some: list[str]) -> list[tuple[int, int, float]]:
        return [(hit["example"], hit["row"], hit["share"]) for hit in found(tmp_path, some, rows, 6)]

    together = hits(texts)
    assert len({example for example, *_ in together}) >= 12
    assert hits([spoiled(text, chance) for text in texts]) == together


TURNS = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "Q"},
    {"role": "assistant", "content": "A"},
    {"role": "user", "content": [{"type": "text", "text": "C"}]},
    {"role": "assistant", "content": "B"},
]
EVALUATION_ROWS: list[tuple[Row, str, str]] = [
    ({"id": 7, "question": "Q", "solutions": '["A", "B"]', "input_output": "{}", "starter_code": "S"}, "Q", "AB"),
    ({"instruction": "Q", "input": "A", "output": "B"}, "QA", "B"),
    ({"task_id": "HumanEval/0", "prompt": "Q", "canonical_solution": "A"}, "Q", "A"),
    ({"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}, "Q", "A"),
    ({"messages": TURNS}, "QAC", "B"),
    ({"prompt": TURNS[1:2], "completion": TURNS[2:3]}, "Q", "A"),
    ({"text": "Q", "answers": ["A", "B"], "tests": "S"}, "Q", "AB"),
]
"""Evaluation rows, and the letters of their questions and of their answers."""


@pytest.mark.parametrize("at", range(len(EVALUATION_ROWS)))
def test_texts_of_evaluation_rows(tmp_path: Path, at: int) -> None:
    """Letters stand for texts of twenty words; that of S is in no column that counts."""
    said = {letter: some_nouns(ord(letter)) for letter in "QABCS"}
    row, asked, answered = EVALUATION_ROWS[at]
    written = json.loads(re.sub(r'(?<=")([QABCS])(?=\\?")', lambda match: said[match[0]], json.dumps(row)))
    hits = found(tmp_path, list(said.values()), [written])
    expected = {*(("prompt", letter) for letter in asked), *(("answer", letter) for letter in answered)}
    assert {(hit["kind"], "QABCS"[hit["example"]]) for hit in hits} == expected


REAL = os.environ.get("PACKTRAIN_REALDATA", "")


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="PACKTRAIN_REALDATA is not set")
@pytest.mark.parametrize(("train", "test", "count"), [("train", "test", 367), ("train", "leetcode_apps_schema", 457)])
def test_hits_on_real_problems(tmp_path: Path, train: str, test: str, count: int) -> None:
    """As many as an earlier search found, whose hashes, filters and normalising were others."""
    data, against = (Path(REAL) / "apps" / f"{name}.jsonl" for name in (train, test))
    done = kit.cli("contamination", "--input", data, "--against", against, "--out", tmp_path / "hits.jsonl")
    assert done.code == 0, done.err
    assert len((tmp_path / "hits.jsonl").read_text().splitlines()) == count
