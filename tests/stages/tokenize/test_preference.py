"""Pairs on tokens: prompt and completion together are one tokenization; nothing beyond the prompt's end is shared."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.schemas.rows import ENCODED, Example, RunKind
from packtrain.stages.select.preference_limits import PairCut, PairLengths, PairLimits
from packtrain.stages.select.truncate import Keep
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer
from packtrain.stages.tokenize.byte_lengths import ByteLengths
from packtrain.stages.tokenize.encode import Encoder, EngineSample, Refused, SpecialTokenAffixes
from packtrain.stages.tokenize.encode_counts import EncodeCounts
from packtrain.stages.tokenize.engines import make_engine, reference_tokenizer
from packtrain.stages.tokenize.preference import PairEncoder, common_prefixes

BOS, END, END_ID = "<s>", "<|im_end|>", 3
PLAIN = SpecialTokenAffixes(eos=END)
WITH_BOS = SpecialTokenAffixes(prefix=(1,), prefix_text=BOS, eos=END)
WITH_BOTH = SpecialTokenAffixes(prefix=(1,), suffix=(3,), prefix_text=BOS, suffix_text=END)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Thinking is written into the last turn only, and a word of the answer into the system message before it.
CUNNING = (
    "{{ '<|im_start|>system\n' + messages[-1].content[:2] + '<|im_end|>\n' }}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if loop.last and message.role == 'assistant' %}{{ 'THINK\n' }}{% endif %}"
    "{{ message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

MakeEncoder = Callable[..., PairEncoder]


@pytest.fixture(scope="module")
def tokenizer_json(make_tokenizer: Callable[..., Path]) -> str:
    return (make_tokenizer("tiny") / "tokenizer.json").read_text()


@pytest.fixture(scope="module")
def make_encoder(tokenizer_json: str) -> MakeEncoder:
    @cache
    def make(around: SpecialTokenAffixes = PLAIN, template: str = TEMPLATE) -> PairEncoder:
        renderer = Renderer(ChatTemplate(template, {}, "test"), stops=[BOS, "<|im_start|>", END])
        engine, table = make_engine("tokenizers", tokenizer_json), ByteLengths.from_json(tokenizer_json)
        return PairEncoder(Encoder(engine, renderer, table, around, lambda: reference_tokenizer(tokenizer_json)))

    return make


def encoded(encoder: PairEncoder, examples: list[Example]) -> tuple[list[Any], EncodeCounts, list[Refused]]:
    counts, refused, samples = EncodeCounts(), list[Refused](), list[EngineSample]()
    batches = list(encoder.encode(examples, counts, refused, samples))
    assert all(batch.schema == ENCODED for batch in batches)
    return pa.Table.from_batches(batches, ENCODED).to_pylist(), counts, refused


def parts(row: dict[str, Any]) -> tuple[list[int], list[int], list[int]]:
    """Prompt, chosen, rejected."""
    first, second, third = (run["end"] for run in row["runs"])
    assert [run["kind"] for run in row["runs"]] == [RunKind.PROMPT, RunKind.COMPLETION, RunKind.REJECTED]
    ids = row["input_ids"]
    assert third == len(ids)
    return ids[:first], ids[first:second], ids[second:]


def texts(prompt: str, chosen: str, rejected: str, line: int = 0) -> Example:
    return Example(line, -1, "", prompt, chosen, None, rejected=rejected)


def said(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def chat(prompt: str, chosen: str, rejected: str, line: int = 0) -> Example:
    return Example(line, 2, "g", [{"role": "user", "content": prompt}], [said(chosen)], None, rejected=[said(rejected)])


# --- literal rows ---


def test_common_prefixes() -> None:
    ids = np.array([1, 2, 3, 1, 2, 4, 7, 7, 8, 9], dtype=np.int32)
    begins = np.array([0, 3, 6, 7, 8, 9], dtype=np.int64)

    def at_most(*limits: int) -> list[int]:
        found: list[int] = common_prefixes(ids, begins, np.array(limits, dtype=np.int64)).tolist()
        return found

    assert at_most(3, 1, 1) == [2, 1, 0]
    assert at_most(1, 0, 0) == [1, 0, 0]
    assert at_most(0, 0, 0) == [0, 0, 0]
    assert common_prefixes(ids, begins[:0], np.zeros(0, np.int64)).tolist() == []


def test_the_three_parts(make_encoder: MakeEncoder, tokenizer_json: str) -> None:
    tokenizer = reference_tokenizer(tokenizer_json)
    rows, counts, refused = encoded(
        make_encoder(WITH_BOS), [texts("Ask.\n", "Say.", "Sing."), chat("Hi", "Ho", "Hum", line=7)]
    )
    decoded = [tuple(tokenizer.decode(ids, skip_special_tokens=False) for ids in parts(row)) for row in rows]
    assert decoded == [
        (f"{BOS}Ask.\n", f"Say.{END}", f"Sing.{END}"),
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", f"Ho{END}\n", f"Hum{END}\n"),
    ]
    assert [(row["line"], row["sub"], row["group"]) for row in rows] == [(0, -1, ""), (7, 2, "g")]
    assert refused == []
    assert counts.examples == 2
    assert counts.tokens == sum(len(row["input_ids"]) for row in rows)
    assert (counts.special, counts.end_of_sequence, counts.boundaries, counts.straddles) == (1, 2, 4, 0)


def test_what_the_tokenizer_puts_behind_is_counted_twice(make_encoder: MakeEncoder) -> None:
    (row,), counts, _ = encoded(make_encoder(WITH_BOTH), [texts("Ask.\n", "Say.", f"Sing.{END}")])
    prompt, chosen, rejected = parts(row)
    assert (prompt[0], chosen[-1], rejected[-1]) == (1, END_ID, END_ID)
    assert rejected.count(END_ID) == 1
    assert (counts.special, counts.end_of_sequence) == (2, 0)


def test_a_token_across_the_boundary_belongs_to_the_completions(make_encoder: MakeEncoder) -> None:
    """'the' is one token here, which the prompt would cut."""
    (row,), counts, _ = encoded(make_encoder(), [texts("behind t", "he last", "he houses")])
    prompt, chosen, rejected = parts(row)
    (whole,), _, _ = encoded(make_encoder(), [texts("behind ", "the last", "the houses")])
    assert prompt + chosen == parts(whole)[0] + parts(whole)[1]
    assert chosen[0] == rejected[0], "both begin with the token that straddles"
    assert counts.straddles == 2 == row["straddles"]


def test_a_template_that_writes_the_answer_before_it(make_encoder: MakeEncoder, tokenizer_json: str) -> None:
    """The prompt ends where the two differ, far before the answers."""
    (row,), _, refused = encoded(make_encoder(template=CUNNING), [chat("Hi", "Ho", "Um")])
    assert refused == []
    prompt, chosen, rejected = parts(row)
    tokenizer = reference_tokenizer(tokenizer_json)
    assert tokenizer.decode(prompt, skip_special_tokens=False) == "<|im_start|>system\n"
    assert tokenizer.decode(chosen, skip_special_tokens=False).endswith("THINK\nHo<|im_end|>\n")
    assert tokenizer.decode(rejected, skip_special_tokens=False).startswith("Um<|im_end|>")


def test_refused(make_encoder: MakeEncoder) -> None:
    alone = Example(0, -1, "", "Ask.", "Say.", None)
    flagged = Example(1, -1, "", [said("a")], [said("b", train=False)], None, rejected=[said("c")])
    asked = Example(2, -1, "", [said("a", weight=0)], [said("b")], None, rejected=[said("c")])
    broken = Example(3, -1, "", "Ask.", "Say.", None, rejected=[said("c")])
    rows, counts, refused = encoded(make_encoder(), [alone, flagged, asked, broken, texts("Ask.", "a", "b", 4)])
    assert [(one.line, one.reason) for one in refused] == [(0, "not_a_pair"), (1, "train_flags"), (3, "wrong_type")]
    assert [row["line"] for row in rows] == [2, 4]
    assert counts.examples == 2
    assert counts.end_of_sequence == 2, "of the last pair alone"


# --- properties ---

PIECE = st.sampled_from(["the", " mules", "\n", " ", "t", "he", "1", "22", "é", "🙂", END, BOS, "valley", "\n\n", "  "])
TEXT = st.lists(PIECE, min_size=1, max_size=6).map("".join)


@given(st.lists(st.tuples(TEXT, TEXT, TEXT, st.booleans()), min_size=1, max_size=8), st.sampled_from([0, 1, 2]))
def test_prompt_and_completion_are_one_tokenization(
    make_encoder: MakeEncoder, tokenizer_json: str, pairs: list[tuple[str, str, str, bool]], around: int
) -> None:
    """Against the tokenizer itself: ids, the longest shared beginning, and no token beyond the prompt's characters."""
    how = (PLAIN, WITH_BOS, WITH_BOTH)[around]
    tokenizer = reference_tokenizer(tokenizer_json)
    rows, counts, refused = encoded(
        make_encoder(how),
        [(chat if is_chat else texts)(a, b, c, line) for line, (a, b, c, is_chat) in enumerate(pairs)],
    )
    assert refused == []
    assert [row["line"] for row in rows] == list(range(len(pairs)))
    special = ended = 0
    for row, (prompt_text, chosen_text, rejected_text, is_chat) in zip(rows, pairs, strict=True):
        prompt, *completions = parts(row)
        wholes, limits, put = [], [], []
        for answer, completion in zip((chosen_text, rejected_text), completions, strict=True):
            if is_chat:
                head = f"<|im_start|>user\n{prompt_text}<|im_end|>\n<|im_start|>assistant\n"
                text = f"{head}{answer}<|im_end|>\n"
                left: tuple[int, ...] = ()
                right: tuple[int, ...] = ()
            else:
                head, text = prompt_text, prompt_text + answer
                if how.eos and not text.endswith(how.eos):
                    text += how.eos
                    ended += 1
                left = () if how.prefix_text and text.startswith(how.prefix_text) else how.prefix
                right = () if how.suffix_text and text.endswith(how.suffix_text) else how.suffix
            coded = tokenizer.encode(text, add_special_tokens=False)
            whole = [*left, *coded.ids, *right]
            assert prompt + completion == whole
            wholes.append(whole)
            # A token that ends within the prompt's characters; one that holds a part of a character has all of it.
            limits.append(len(left) + sum(end <= len(head) for _, end in coded.offsets))
            special += len(left) + len(right)
            put.append(len(left))
        special -= min(put)
        same = next((i for i, (a, b) in enumerate(zip(*wholes, strict=False)) if a != b), min(map(len, wholes)))
        assert len(prompt) == min(*limits, same)
    assert counts.special == special
    assert counts.end_of_sequence == ended
    assert counts.tokens == sum(len(row["input_ids"]) for row in rows)


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_a_pair_depends_on_nothing_else(
    make_encoder: MakeEncoder, pairs: list[tuple[str, str, str]], chance: Any
) -> None:
    """In another order, and repeated, it is the same row; another pair has another digest."""
    encoder = make_encoder()
    once, _, _ = encoded(encoder, [texts(*pair) for pair in pairs])
    order = [chance.randrange(len(pairs)) for _ in range(8)]
    again, _, _ = encoded(encoder, [texts(*pairs[index]) for index in order])
    assert again == [once[index] for index in order]
    assert len({row["digest"] for row in once}) == len(set(pairs))


def test_swapped_answers_are_another_pair(make_encoder: MakeEncoder) -> None:
    rows, _, _ = encoded(make_encoder(), [texts("Ask.", "a", "b"), texts("Ask.", "b", "a"), texts("Ask.a", "", "b")])
    assert len({row["digest"] for row in rows}) == 3


# --- limits ---


def lengths(*of: tuple[int, int, int]) -> PairLengths:
    return PairLengths(*np.array(of, dtype=np.int32).reshape(-1, 3).T.copy())


def stretches(cut: PairCut) -> list[list[tuple[int, int]]]:
    """(first token, how many) of prompt, chosen and rejected, by pair."""

    def both(begins: NDArray[np.int32], kept: NDArray[np.int32]) -> Sequence[tuple[int, int]]:
        return list(zip(begins.tolist(), kept.tolist(), strict=True))

    begins, kept = cut.begins, cut.kept
    columns = both(begins.prompt, kept.prompt), both(begins.chosen, kept.chosen), both(begins.rejected, kept.rejected)
    return [list(row) for row in zip(*columns, strict=True)]


def test_limits_literally() -> None:
    pairs = lengths((4, 5, 2), (12, 3, 1), (0, 11, 4), (1, 1, 1))
    start = PairLimits(10).cut(lengths((4, 8, 2), (12, 3, 1), (0, 11, 4), (1, 1, 1)))
    assert stretches(start) == [
        [(0, 4), (0, 6), (0, 2)],
        [(0, 12), (0, 0), (0, 0)],
        [(0, 0), (0, 10), (0, 4)],
        [(0, 1), (0, 1), (0, 1)],
    ]
    assert start.overlong.tolist() == [True, True, True, False]
    end = PairLimits(10, keep=Keep.END).cut(lengths((4, 8, 2), (12, 3, 1), (0, 11, 4), (3, 12, 12)))
    assert stretches(end) == [
        [(2, 2), (0, 8), (0, 2)],
        [(5, 7), (0, 3), (0, 1)],
        [(0, 0), (1, 10), (0, 4)],
        [(3, 0), (2, 10), (2, 10)],
    ]
    own = PairLimits(10, max_prompt=3, max_completion=4).cut(pairs)
    assert stretches(own) == [
        [(1, 3), (0, 4), (0, 2)],
        [(9, 3), (0, 3), (0, 1)],
        [(0, 0), (0, 4), (0, 4)],
        [(0, 1), (0, 1), (0, 1)],
    ]
    assert own.prompt_cut.tolist() == [1, 9, 0, 0]
    assert own.completion_cut.tolist() == [1, 0, 7, 0]
    assert not own.overlong.any()
    whole = PairLimits(10, truncate=False).cut(lengths((4, 8, 2), (3, 5, 7)))
    assert stretches(whole) == [[(0, 4), (0, 8), (0, 2)], [(0, 3), (0, 5), (0, 7)]]
    assert whole.overlong.tolist() == [True, False]


SIZE = st.integers(0, 40)
LIMIT = st.none() | st.integers(1, 30)


@given(
    st.lists(st.tuples(SIZE, SIZE, SIZE), min_size=1, max_size=6),
    st.integers(2, 40),
    st.sampled_from(Keep),
    LIMIT,
    LIMIT,
)
def test_limits_hold(
    of: list[tuple[int, int, int]], most: int, keep: Keep, max_prompt: int | None, max_completion: int | None
) -> None:
    """Slices of lists, as a person would write them."""
    cut = PairLimits(most, keep, True, max_prompt, max_completion).cut(lengths(*of))
    for (prompt, chosen, rejected), found in zip(of, stretches(cut), strict=True):
        head = list(range(prompt))[-max_prompt:] if max_prompt else list(range(prompt))
        answers = [list(range(size))[:max_completion] for size in (chosen, rejected)]
        if keep is Keep.START:
            room = max(most - len(head), 0)
            answers = [answer[:room] for answer in answers]
        else:
            room = max(most - max(map(len, answers)), 0)
            head = head[-room:] if room else []
            answers = [answer[-most:] for answer in answers]
        for (begin, size), expected in zip(found, [head, *answers], strict=True):
            assert list(range(begin, begin + size)) == expected
        if len(head) <= most:
            assert len(head) + max(map(len, answers)) <= most
