"""Pairs on tokens: prompt and completion together are one tokenization; nothing beyond the prompt's end is shared."""

from collections.abc import Callable
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
from packtrain.stages.tokenize.encode import Encoder, SpecialTokenAffixes
from packtrain.stages.tokenize.encode_counts import EncodeCounts, Refused
from packtrain.stages.tokenize.engine_check import EngineSample
from packtrain.stages.tokenize.engines import make_engine, reference_tokenizer
from packtrain.stages.tokenize.preference_tokens import encode_pairs

from tests import kit

BOS, END = "<s>", "<|im_end|>"
PLAIN = SpecialTokenAffixes(eos=END)
WITH_BOS = SpecialTokenAffixes(prefix=(1,), prefix_text=BOS, eos=END)
WITH_BOTH = SpecialTokenAffixes(prefix=(1,), suffix=(3,), prefix_text=BOS, suffix_text=END)
# Thinking is written into the last turn only, and a word of the answer into the system message before it.
CUNNING = (
    "{{ '<|im_start|>system\n' + messages[-1].content[:2] + '<|im_end|>\n' }}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if loop.last and message.role == 'assistant' %}{{ 'THINK\n' }}{% endif %}"
    "{{ message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

MakeEncoder = Callable[..., Encoder]


@pytest.fixture(scope="module")
def tokenizer_json(make_tokenizer: Callable[..., Path]) -> str:
    return (make_tokenizer("tiny") / "tokenizer.json").read_text()


@pytest.fixture(scope="module")
def make_encoder(tokenizer_json: str) -> MakeEncoder:
    @cache
    def make(around: SpecialTokenAffixes = PLAIN, template: str = kit.CHATML) -> Encoder:
        renderer = Renderer(ChatTemplate(template, {}, "test"), stops=[BOS, "<|im_start|>", END])
        return Encoder(tokenizer_json, make_engine("tokenizers", tokenizer_json), renderer, around)

    return make


def encoded(encoder: Encoder, examples: list[Example]) -> tuple[list[Any], EncodeCounts, list[Refused]]:
    counts, refused, samples = EncodeCounts(), list[Refused](), list[EngineSample]()
    batches = list(encode_pairs(encoder, examples, counts, refused, samples))
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
