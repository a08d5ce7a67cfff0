"""What the search finds: planted overlaps of each kind and nothing else, and exactly what sets of tuples would find."""

import random
import re
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.rows import Example, Messages
from packtrain.stages.overlap import index as index_module
from packtrain.stages.overlap.evaluation_row import ANSWER, PROMPT, evaluation_id, evaluation_texts
from packtrain.stages.overlap.examples import ExampleHit, search_examples
from packtrain.stages.overlap.hashes import Sums
from packtrain.stages.overlap.index import (
    COMMON_TEXTS,
    PHRASE,
    PHRASE_SHARE,
    PHRASE_TEXTS,
    SHORTEST,
    build_index,
)
from packtrain.stages.overlap.search import search
from packtrain.stages.overlap.words import words_of

from tests.support.examples import examples

NOUNS = [
    "harbour",
    "lantern",
    "orchard",
    "pigeon",
    "quarry",
    "ribbon",
    "saddle",
    "timber",
    "umbrella",
    "violin",
    "walnut",
    "yacht",
    "zipper",
    "anchor",
    "basket",
    "candle",
    "dragon",
    "engine",
    "falcon",
    "garden",
    "hammer",
    "island",
    "jacket",
    "kettle",
    "ladder",
    "magnet",
    "needle",
    "office",
    "pepper",
    "rocket",
    "silver",
    "tunnel",
]
PROBLEM = (
    "Thirty pigeons live in a harbour, and every morning seven of them carry a silver ribbon to the lantern on the "
    "island; how many mornings pass before each pigeon has carried one ribbon and a candle from the orchard to a wall?"
)
SHORT = "Which anchor sinks below the old quarry?"
ANSWERED = (
    "Each morning seven pigeons fly, so after four mornings twenty eight have flown, and on the fifth morning the last "
    "two pigeons carry their ribbons together with five others that fly a second time"
)


def found(texts: list[str], rows: list[str], ngram: int = 13, asks: bool = True) -> list[ExampleHit]:
    """The hits of texts, each the whole of an example."""
    index = build_index(rows, [asks] * len(rows), ngram)
    examples = [Example(0, -1, "", None, None, one) for one in texts]
    return search_examples(index, np.full(len(rows), asks), examples).hits


def filler(words: int, seed: int = 0) -> str:
    """Text of other words."""
    source = random.Random(seed)
    return " ".join(
        source.choice(["alpha", "bravo", "carbon", "delta", "echo", "foxtrot", "gamma", "hotel"]) for _ in range(words)
    )


def words_in(text: str, first: int, count: int) -> str:
    """Some words of a text, with its punctuation."""
    return " ".join(text.split()[first : first + count])


PLANTED = {
    "verbatim": f"{filler(30)} {PROBLEM} {filler(20)}",
    "case": PROBLEM.upper(),
    "punctuation": re.sub(r"[,;?]", " -- ", PROBLEM),
    "whitespace": "\t".join(PROBLEM.split()),
    "line ends": "\r\n".join(PROBLEM.split()),
    "markup": "**" + "** _".join(PROBLEM.split()) + "_",
    "full width": "".join(chr(ord(char) + 0xFEE0) if char.isalpha() else char for char in PROBLEM),
    "soft hyphens": PROBLEM.replace("pigeon", "pi\u00adgeon"),
    "one piece": f"{filler(40)} {words_in(PROBLEM, 5, 13)} {filler(40)}",
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_overlap_is_found(kind: str) -> None:
    rows = [filler(60, 3), PROBLEM, SHORT]
    (hit,) = found([PLANTED[kind]], rows)
    assert hit.text == 1
    assert hit.match == ("n-gram" if kind == "one piece" else "whole")
    assert hit.longest.startswith("harbour and every" if kind == "one piece" else "thirty pigeons live in a harbour")


def test_twelve_words_are_no_hit() -> None:
    assert not found([f"{filler(20)} {words_in(PROBLEM, 5, 12)} {filler(20)}"], [PROBLEM])
    assert found([f"{filler(20)} {words_in(PROBLEM, 5, 12)} {filler(20)}"], [PROBLEM], ngram=12)


def test_pieces_of_two_examples_do_not_join() -> None:
    assert not found([words_in(PROBLEM, 0, 12), words_in(PROBLEM, 12, 12)], [PROBLEM])
    first = Example(0, -1, "", words_in(PROBLEM, 0, 12), words_in(PROBLEM, 12, 12), None)
    index = build_index([PROBLEM], [True], 13)
    assert not search_examples(index, np.array([True]), [first]).hits


def test_a_short_question_is_found_whole_or_not_at_all() -> None:
    rows = [SHORT, "Which anchor sinks?", "Which anchor sinks below the old harbour wall?"]
    hits = found([f"{filler(9)} which ANCHOR sinks, below the old quarry {filler(9)}", filler(30)], rows)
    assert [(hit.example, hit.text, hit.match) for hit in hits] == [(0, 0, "whole")]
    assert not found(["Which anchor sinks below the old"], rows)
    assert not found([SHORT], rows, asks=False)  # a short answer says nothing


def test_an_answer_needs_half_of_its_ngrams() -> None:
    count = len(ANSWERED.split()) - 12
    for words, match in ((13, None), (12 + count // 2 - 1, None), (12 + (count + 1) // 2, "n-gram"), (99, "whole")):
        hits = found([f"{filler(5)} {words_in(ANSWERED, 0, words)}"], [ANSWERED], asks=False)
        assert [hit.match for hit in hits] == ([] if match is None else [match])


def test_near_whole() -> None:
    changed = PROBLEM.split()
    del changed[-2]
    (hit,) = found([" ".join(changed)], [PROBLEM])
    assert hit.match == "near-whole"


def test_messages_of_a_prompt_are_one_text() -> None:
    turns: Messages = [
        {"role": "user", "content": words_in(PROBLEM, 0, 10)},
        {"role": "assistant", "content": [{"type": "text", "text": words_in(PROBLEM, 10, 99)}]},
    ]
    index = build_index([PROBLEM], [True], 13)
    example = Example(3, -1, "", turns, [{"role": "assistant", "content": filler(9)}], None)
    (hit,) = search_examples(index, np.array([True]), [example]).hits
    assert hit.match == "whole"
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": {"x": PROBLEM}}}],
    }
    (hit,) = search_examples(index, np.array([True]), [Example(3, -1, "", turns[:1], [call], None)]).hits
    assert hit.match == "whole"


def test_frames_do_not_count() -> None:
    frame = "the first line of the input contains a single integer {} which is the number of test cases to follow"
    rows = [
        f"{filler(25, at)} {frame.format(at * 7)} {' '.join(random.Random(at).sample(NOUNS, 20))}" for at in range(40)
    ]
    assert not found([f"{filler(9)} {frame.format(1)} {filler(9)}"], rows)
    (hit,) = found([f"{frame.format(1)} {' '.join(random.Random(7).sample(NOUNS, 20))}"], rows)
    assert hit.text == 7


def test_common_ngrams_do_not_count() -> None:
    piece = words_in(PROBLEM, 0, 20)
    few = [f"{piece} {' '.join(random.Random(at).sample(NOUNS, 20))}" for at in range(PHRASE_TEXTS)]
    assert len(found([piece], few)) == PHRASE_TEXTS
    many = [f"{piece} {' '.join(random.Random(at).sample(NOUNS, 20))}" for at in range(COMMON_TEXTS + 1)]
    assert not found([piece], many)


@pytest.mark.parametrize(
    "plain",
    [
        " ".join(map(str, range(40))),
        "for i in range(n): for j in range(m): a[i][j] = b[j][i] + c[i] - d[j] " * 2,
        "yes no " * 20,
    ],
)
def test_plain_ngrams_do_not_count(plain: str) -> None:
    assert not found([plain], [f"{plain} {PROBLEM}"])
    (hit,) = found([f"{filler(3)} {plain}"], [plain])  # as a whole it does
    assert hit.match == "whole"


VOCABULARY = st.sampled_from([*NOUNS[:6], "a", "7"])
TEXTS = st.lists(st.lists(VOCABULARY, max_size=25).map(" ".join), min_size=1, max_size=5)


def runs_of(text: str, count: int) -> list[tuple[str, ...]]:
    """All runs of words."""
    words = text.split()
    return [tuple(words[at : at + count]) for at in range(len(words) - count + 1)]


def oracle(texts: list[str], rows: list[str], n: int) -> set[tuple[int, int, int]]:
    """(text, row, distinct shared n-grams), by sets of tuples."""
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
    shared: dict[tuple[int, int], set[tuple[str, ...]]] = defaultdict(set)
    for number, text in enumerate(texts):
        for gram in runs_of(text, n):
            for holder in held[gram] if len(held[gram]) <= COMMON_TEXTS else ():
                shared[number, holder].add(gram)
    return {(*place, len(grams)) for place, grams in shared.items()}


ROWS = st.lists(st.lists(VOCABULARY, max_size=25).map(" ".join), min_size=1, max_size=16, unique=True)


@given(TEXTS, ROWS, st.integers(SHORTEST, 8), st.lists(VOCABULARY, min_size=9, max_size=12).map(" ".join))
@examples(160)
def test_it_finds_what_sets_of_tuples_find(texts: list[str], rows: list[str], n: int, piece: str) -> None:
    """Also with a piece that many rows have, which is common or a frame in some."""
    for some in (rows, [f"{row} {piece}" for row in rows], [f"{row} {piece}" for row in rows[:4]] + rows[4:]):
        index = build_index(some, [False] * len(some), n)
        hits = search(index, [*texts, piece])
        found = {(at, hit.text, len(hit.postings)) for at, of_text in enumerate(hits) for hit in of_text}
        assert found == oracle([*texts, piece], some, n)


@given(TEXTS, TEXTS, st.integers(0, 2**32))
@examples(150)
def test_case_punctuation_and_neighbours_do_not_matter(texts: list[str], rows: list[str], seed: int) -> None:
    source = random.Random(seed)

    def changed(text: str) -> str:
        return "".join(
            source.choice([" ", "\n", ", ", " -- ", "!?"]) + source.choice([w, w.upper()]) for w in text.split()
        )

    index = build_index(rows, [True] * len(rows), SHORTEST)

    def hits(some: list[str]) -> list[list[tuple[int, list[int]]]]:
        return [[(hit.text, hit.postings.tolist()) for hit in of_text] for of_text in search(index, some)]

    together = hits(texts)
    assert hits([changed(text) for text in texts]) == together
    assert [hits([text])[0] for text in texts] == together
    order = source.sample(range(len(texts)), len(texts))
    assert hits([texts[at] for at in order]) == [together[at] for at in order]


def test_a_collision_of_hashes_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hashes of one bit, everything collides, and the words decide."""
    whole = Sums._mixed
    monkeypatch.setattr(Sums, "_mixed", staticmethod(lambda *of: whole(*of) >> np.uint64(63) << np.uint64(63)))
    monkeypatch.setattr(index_module, "COMMON_TEXTS", 10**6)
    monkeypatch.setattr(index_module, "PHRASE_TEXTS", 10**6)
    assert not found([filler(400)], [PROBLEM, SHORT])
    hits = found([f"{filler(40)} {SHORT} {filler(40)}"], [SHORT, "Which anchor sinks below the old wall?"])
    assert [(hit.text, hit.match) for hit in hits] == [(0, "whole")]


@given(st.lists(st.text(max_size=200), max_size=4), st.integers(1, 6))
@examples(100)
def test_equal_words_have_equal_hashes(texts: list[str], count: int) -> None:
    words = words_of([*texts, "\n".join(texts)])
    grams = Sums.of(words).grams(count)
    by_words = defaultdict(set)
    for at in range(len(grams)):
        by_words[words.bytes_of(at, count)].add(int(grams[at]))
    assert all(len(some) == 1 for some in by_words.values())
    assert len({one for some in by_words.values() for one in some}) == len(by_words)


def test_hashes_do_not_depend_on_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(random.Random(1).choices(NOUNS, k=12_000))  # several windows of bytes
    words = words_of([text])
    grams = Sums.of(words).grams(13)
    for at in (0, 4_000, 11_000):
        alone = Sums.of(words_of([" ".join(text.split()[at : at + 13])])).grams(13)
        assert alone.tolist() == [int(grams[at])]


def test_texts_of_evaluation_rows() -> None:
    apps = {"id": 7, "question": "Q", "solutions": '["a", "b"]', "input_output": "{}", "starter_code": "def f():"}
    assert evaluation_texts(apps) == [(PROMPT, "Q"), (ANSWER, "a"), (ANSWER, "b")]
    assert evaluation_id(apps) == "7"
    assert evaluation_texts({"question": "Q", "solutions": ""}) == [(PROMPT, "Q")]
    assert evaluation_texts({"instruction": "I", "input": "x", "output": "O"}) == [(PROMPT, "I\nx"), (ANSWER, "O")]
    assert evaluation_texts({"task_id": "HumanEval/0", "prompt": "def f", "canonical_solution": "return"}) == [
        (PROMPT, "def f"), (ANSWER, "return")
    ]  # fmt: skip
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": [{"type": "text", "text": "V"}]},
        {"role": "assistant", "content": "B"},
    ]
    assert evaluation_texts({"messages": turns}) == [(PROMPT, "U\nA\nV"), (ANSWER, "B")]
    assert evaluation_texts({"prompt": turns[:2], "completion": turns[2:3]}) == [(PROMPT, "U"), (ANSWER, "A")]
    assert evaluation_texts({"conversations": [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A"}]}) == [
        (PROMPT, "U"), (ANSWER, "A")
    ]  # fmt: skip
    assert evaluation_texts({"text": " "}) == []
    assert evaluation_texts({"answer": "A only"}) == []
