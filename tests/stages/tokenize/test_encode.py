"""Ids and spans of single examples: added tokens are added once, and what cannot be encoded is refused by name."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from packtrain.schemas.rows import ENCODED, Example
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.tokenize.encode import Encoder
from packtrain.stages.tokenize.encode_counts import EncodeCounts, Place
from packtrain.stages.tokenize.engine_check import EngineSample, SampledTexts, describe_difference
from packtrain.stages.tokenize.engines import make_engine, reference_tokenizer
from packtrain.stages.tokenize.preference_tokens import encode_pairs
from packtrain.stages.tokenize.vocabulary import SpecialTokenAffixes

from tests import kit

BOS = "<s>"
BOS_ID = 1
START = "<|im_start|>"
END = "<|im_end|>"
END_ID = 3

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
        renderer = Renderer(ChatTemplate(template, {"bos_token": BOS}, "test"), special_tokens=[BOS, START, END])
        return Encoder(tokenizer_json, make_engine("tokenizers", tokenizer_json), renderer, around)

    return make


@pytest.fixture(scope="module")
def decode(tokenizer_json: str) -> Callable[[Sequence[int]], str]:
    """Ids to text, special tokens included."""
    tokenizer = reference_tokenizer(tokenizer_json)

    def back(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    return back


def encoded(
    encoder: Encoder, examples: list[Example], *, pairs: bool = False
) -> tuple[list[dict[str, Any]], EncodeCounts, list[Place]]:
    counts = EncodeCounts()
    batches = list(encode_pairs(encoder, examples, counts) if pairs else encoder.encode(examples, counts))
    assert all(batch.schema == ENCODED for batch in batches)
    return pa.Table.from_batches(batches, ENCODED).to_pylist(), counts, counts.places


def text(value: str, line: int = 0) -> Example:
    return Example(line, -1, "", None, None, value)


@pytest.mark.parametrize(
    ("around", "word", "expected"),
    [
        (PLAIN, "word", "word" + END),
        (PLAIN, "word" + END, "word" + END),
        (PLAIN, "word" + END + "\n", "word" + END + "\n" + END),
        (PLAIN, END + END, END + END),  # a person's own two are theirs
        (WITH_BOS, "word", BOS + "word" + END),
        (WITH_BOS, BOS + "word", BOS + "word" + END),
        (WITH_BOTH, "word", BOS + "word" + END),
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
    word: str,
    expected: str,
) -> None:
    rows, counts, _ = encoded(make_encoder(around), [text(word)])
    ids = rows[0]["input_ids"]
    assert decode(ids) == expected
    assert [ids.count(token) for token in (BOS_ID, END_ID)] == [expected.count(token) for token in (BOS, END)]
    created = len(ids) - len(make_encoder(NOTHING).engine.encode([word]).ids)
    assert counts.end_of_sequence + counts.special == created
    assert counts.end_of_sequence == (around.eos != "" and not word.endswith(END))
    assert rows[0]["spans"][-1]["end"] == len(ids)


def turn(role: str, content: str, **keys: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **keys}


def test_samples_follow_the_content(make_encoder: MakeEncoder) -> None:
    """About one text in 1,024, the same ones whatever stands around them."""
    encoder = make_encoder()
    everything = [text(f"number {n}", n) for n in range(6000)]

    def sampled(examples: list[Example]) -> list[EngineSample]:
        sampled = SampledTexts()
        list(encoder.encode(examples, EncodeCounts(), sampled))
        return sampled.samples

    samples = sampled(everything)
    assert 1 <= len(samples) <= 20
    assert {sample.text for sample in sampled(everything[::-1])} == {sample.text for sample in samples}
    assert describe_difference(samples, encoder.engine) == ""


# --- preference pairs ---


def test_pairs_that_are_refused(make_encoder: MakeEncoder) -> None:
    a, b, c = ([turn("assistant", text)] for text in "abc")
    alone = Example(0, -1, "", "Ask.", "Say.", None)
    flagged = Example(1, -1, "", a, [turn("assistant", "b", train=False)], None, rejected=c)
    asked = Example(2, -1, "", [turn("assistant", "a", weight=0)], b, None, rejected=c)
    broken = Example(3, -1, "", "Ask.", "Say.", None, rejected=c)
    of_texts = Example(4, -1, "", "Ask.", "a", None, rejected="b")
    rows, counts, refused = encoded(make_encoder(), [alone, flagged, asked, broken, of_texts], pairs=True)
    assert [(place.line, place.name) for place in refused] == [(0, "not_a_pair"), (1, "train_flags"), (3, "wrong_type")]
    assert [row["line"] for row in rows] == [2, 4]
    assert counts.examples == 2
    assert counts.end_of_sequence == 2, "of the last pair alone"
