"""Ids and runs fit together: runs cover the ids, added tokens are added once, and everything is counted."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.rows import ENCODED, Example, RunKind
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer
from packtrain.stages.tokenize import encode as module
from packtrain.stages.tokenize.encode import Encoder, SpecialTokenAffixes
from packtrain.stages.tokenize.encode_counts import EncodeCounts, Refused
from packtrain.stages.tokenize.engine_check import EngineSample, compare
from packtrain.stages.tokenize.engines import make_engine, reference_tokenizer

from tests import kit

BOS, START, END = "<s>", "<|im_start|>", "<|im_end|>"
BOS_ID, END_ID = 1, 3

PLAIN = SpecialTokenAffixes(eos=END)
WITH_BOS = SpecialTokenAffixes(prefix=(BOS_ID,), prefix_text=BOS, eos=END)
WITH_BOTH = SpecialTokenAffixes(prefix=(BOS_ID,), suffix=(END_ID,), prefix_text=BOS, suffix_text=END, eos=END)
WITH_SEPARATOR = SpecialTokenAffixes(prefix=(BOS_ID,), suffix=(0,), prefix_text=BOS, suffix_text="", eos=END)
NOTHING = SpecialTokenAffixes()

TEMPLATE = "{{ bos_token }}" + kit.CHATML

MakeEncoder = Callable[..., Encoder]


@pytest.fixture(scope="module")
def tokenizer_json(make_tokenizer: Callable[..., Path]) -> str:
    return (make_tokenizer("tiny") / "tokenizer.json").read_text()


@pytest.fixture(scope="module")
def make_encoder(tokenizer_json: str) -> MakeEncoder:
    @cache
    def make(around: SpecialTokenAffixes = PLAIN, template: str = TEMPLATE) -> Encoder:
        renderer = Renderer(ChatTemplate(template, {"bos_token": BOS}, "test"), stops=[BOS, START, END])
        return Encoder(tokenizer_json, make_engine("tokenizers", tokenizer_json), renderer, around)

    return make


@pytest.fixture(scope="module")
def decode(tokenizer_json: str) -> Callable[[Sequence[int]], str]:
    """Ids to text, special tokens included."""
    tokenizer = reference_tokenizer(tokenizer_json)

    def back(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    return back


def encoded(encoder: Encoder, examples: Iterable[Example]) -> tuple[list[dict[str, Any]], EncodeCounts, list[Refused]]:
    counts, refused, samples = EncodeCounts(), list[Refused](), list[EngineSample]()
    batches = list(encoder.encode(examples, counts, refused, samples))
    assert all(batch.schema == ENCODED for batch in batches)
    return pa.Table.from_batches(batches, ENCODED).to_pylist(), counts, refused


def text(value: str, line: int = 0) -> Example:
    return Example(line, -1, "", None, None, value)


def pair(prompt: str, completion: str, line: int = 0) -> Example:
    return Example(line, -1, "", prompt, completion, None)


def chat(user: str, assistant: str | None, line: int = 0) -> Example:
    completion = [] if assistant is None else [{"role": "assistant", "content": assistant}]
    return Example(line, 2, "g", [{"role": "user", "content": user}], completion, None)


def spans(row: dict[str, Any], decode: Callable[[Sequence[int]], str]) -> list[tuple[str, RunKind]]:
    """Each run as the text of its tokens."""
    begin, out = 0, []
    for run in row["runs"]:
        out.append((decode(row["input_ids"][begin : run["end"]]), RunKind(run["kind"])))
        begin = run["end"]
    return out


# --- literal rows ---


@pytest.mark.parametrize(
    ("around", "given", "expected"),
    [
        (PLAIN, "word", "word" + END),
        (PLAIN, "word" + END, "word" + END),
        (PLAIN, "word" + END + "\n", "word" + END + "\n" + END),
        (PLAIN, END + "word", END + "word" + END),
        (PLAIN, END + END, END + END),  # a person's own two are theirs
        (WITH_BOS, "word", BOS + "word" + END),
        (WITH_BOS, BOS + "word", BOS + "word" + END),
        (WITH_BOS, "word" + BOS, BOS + "word" + BOS + END),
        (WITH_BOTH, "word", BOS + "word" + END),
        (WITH_BOTH, "word" + END, BOS + "word" + END),
        (WITH_BOTH, BOS + "word" + END, BOS + "word" + END),
        (WITH_SEPARATOR, "word", BOS + "word" + END + "<pad>"),
        (NOTHING, "word", "word"),
        (NOTHING, "", ""),
        (PLAIN, "", END),
    ],
)
def test_around_a_text(
    make_encoder: MakeEncoder,
    decode: Callable[[Sequence[int]], str],
    around: SpecialTokenAffixes,
    given: str,
    expected: str,
) -> None:
    rows, counts, _ = encoded(make_encoder(around), [text(given)])
    ids = rows[0]["input_ids"]
    assert decode(ids) == expected
    assert [ids.count(one) for one in (BOS_ID, END_ID)] == [expected.count(one) for one in (BOS, END)]
    created = len(ids) - len(make_encoder(NOTHING).engine.encode([given]).ids)
    assert counts.end_of_sequence + counts.special == created
    assert counts.end_of_sequence == (around.eos != "" and not given.endswith(END))
    assert rows[0]["runs"][-1]["end"] == len(ids)


def test_a_token_on_both_sides(make_encoder: MakeEncoder, decode: Callable[[Sequence[int]], str]) -> None:
    """It belongs to the completion, and is counted."""
    rows, counts, _ = encoded(make_encoder(), [pair("up t", "he path"), pair("up", " the path")])
    assert spans(rows[0], decode) == [("up", RunKind.PROMPT), (f" the path{END}", RunKind.COMPLETION)]
    assert spans(rows[1], decode) == [("up", RunKind.PROMPT), (f" the path{END}", RunKind.COMPLETION)]
    assert [row["straddles"] for row in rows] == [1, 0]
    assert (counts.straddles, counts.boundaries) == (1, 2)


def test_an_end_made_of_prompt_and_completion(
    make_encoder: MakeEncoder, decode: Callable[[Sequence[int]], str]
) -> None:
    rows, counts, _ = encoded(make_encoder(), [pair("word" + END[:4], END[4:])])
    assert spans(rows[0], decode) == [("word", RunKind.PROMPT), (END, RunKind.COMPLETION)]
    assert counts.end_of_sequence == 0


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_flags_that_disagree_are_refused_where_turns_are_not_known(make_encoder: MakeEncoder) -> None:
    answers = [turn("assistant", "Bees", train=False), turn("assistant", "Cows")]
    mixed = [Example(4, -1, "", [turn("user", "Why?")], answers, None)]
    shouting = "{% for m in messages %}{{ '%s!' % m.content }}{% endfor %}"
    rows, _, refused = encoded(make_encoder(template=shouting), mixed)
    assert rows == []
    assert [(item.line, item.reason) for item in refused] == [(4, "train_flags")]
    rows, counts, refused = encoded(make_encoder(), mixed)
    assert (len(rows), refused, counts.of("unproved")) == (1, [], 0)


def test_digests_tell_examples_apart(make_encoder: MakeEncoder) -> None:
    rows, _, _ = encoded(
        make_encoder(), [pair("ab", "c"), pair("a", "bc"), pair("ab", "c", 7), text("abc"), pair("", "abc")]
    )
    digests = [row["digest"] for row in rows]
    assert digests[0] == digests[2]
    assert len({*digests[:2], digests[3]}) == 3
    assert all(len(digest) == 16 for digest in digests)


# --- any rows ---

FRAGMENTS = [
    "",
    "the",
    " mules",
    "\n",
    "  ",
    "\r\n",
    "é",
    "e\u0301",
    "🙂",
    "中文",
    BOS,
    END,
    START,
    "<|im_",
    "end|>",
    "42",
]
contents = st.lists(st.sampled_from(FRAGMENTS), max_size=5).map("".join)
examples = st.one_of(
    st.builds(text, contents.filter(bool)),
    st.builds(pair, contents, contents.filter(bool)),
    st.builds(chat, contents, st.none() | contents),
)
arounds = st.sampled_from([PLAIN, WITH_BOS, WITH_BOTH, WITH_SEPARATOR, NOTHING])


@given(st.lists(examples, min_size=1, max_size=12), arounds, st.integers(1, 4))
def test_batches_do_not_matter(
    make_encoder: MakeEncoder, given_examples: list[Example], around: SpecialTokenAffixes, size: int
) -> None:
    whole, counts, _ = encoded(make_encoder(around), given_examples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATCH_EXAMPLES", size)
        parted, parted_counts, _ = encoded(make_encoder(around), given_examples)
    assert parted == whole
    assert parted_counts == counts


def test_samples_follow_the_content(make_encoder: MakeEncoder) -> None:
    """About one text in 1,024, the same ones whatever stands around them; or all of them."""
    encoder = make_encoder()
    everything = [text(f"number {n}", n) for n in range(6000)]

    def sampled(some: list[Example], *, every: bool = False) -> list[EngineSample]:
        samples: list[EngineSample] = []
        list(encoder.encode(some, EncodeCounts(), [], samples, every=every))
        return samples

    assert [sample.text for sample in sampled(everything[:3], every=True)] == [f"number {n}{END}" for n in range(3)]

    samples = sampled(everything)
    assert 1 <= len(samples) <= 20
    assert {sample.text for sample in sampled(everything[::-1])} == {sample.text for sample in samples}
    assert compare(samples, encoder.engine).differing == 0
