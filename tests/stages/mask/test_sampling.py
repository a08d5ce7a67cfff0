"""The sampling proof: each outcome is planted, in tokens that a person can check."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.rows import ENCODED, Example, Messages, RunKind
from packtrain.stages.mask.sampling_proof import Outcome, StopTokens, outcome_of, prove
from packtrain.stages.tokenize.prompts_alone import PromptAlone, chosen_turns

from tests.support.examples import examples

STOP, HEADER = 9, 8


@pytest.mark.parametrize(
    ("prompt", "begin", "end", "outcome"),
    [
        # ids:  1 2 [ 5 6 9 ] 8 3     stops: 9
        ([1, 2], 2, 5, Outcome.EXACT),
        ([1, 7], 2, 5, Outcome.PREFIX),  # another token
        ([1], 2, 5, Outcome.PREFIX),  # the model would begin earlier
        ([1, 2, 5], 2, 5, Outcome.PREFIX),  # the model would begin later
        (None, 2, 5, Outcome.PREFIX),  # the template refuses the prompt
        ([1, 2], 2, 6, Outcome.PAST_STOP),  # 8 is trained too
        ([1, 2], 2, 4, Outcome.NEXT_HEADER),  # the next token is the stop
        ([1, 2], 2, 3, Outcome.MISSING),  # 6 is none
    ],
)
def test_each_outcome_in_tokens(prompt: list[int] | None, begin: int, end: int, outcome: Outcome) -> None:
    ids = np.array([1, 2, 5, 6, STOP, HEADER, 3], np.int32)
    alone = None if prompt is None else np.array(prompt, np.int32)
    assert outcome_of(ids, begin, end, alone, {STOP}) is outcome


def test_nothing_follows_the_last_turn() -> None:
    ids = np.array([1, 2, 5], np.int32)
    assert outcome_of(ids, 2, 3, ids[:2], {STOP}) is Outcome.MISSING


@examples(200)
@given(st.data())
def test_exact_means_that_generation_would_give_the_turn(data: st.DataObject) -> None:
    """Outside oracle: a model that knows the turn by heart, asked token after token."""
    ids = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=12))
    begin = data.draw(st.integers(0, len(ids)))
    end = data.draw(st.integers(begin, len(ids)))
    prompt = data.draw(st.sampled_from([ids[:begin], ids[:end], ids[::-1]]))
    stops = data.draw(st.sets(st.integers(0, 4), max_size=2))
    generated = []
    for id in ids[begin:]:  # what such a model gives from the trained tokens' place on
        generated.append(id)
        if id in stops:
            break
    stopped = bool(generated) and generated[-1] in stops
    given_alone = prompt == ids[:begin]
    outcome = outcome_of(np.array(ids, np.int32), begin, end, np.array(prompt, np.int32), stops)
    assert (outcome is Outcome.EXACT) == (given_alone and stopped and generated == ids[begin:end])
    assert (outcome is Outcome.PREFIX) == (not given_alone)


def test_the_spans_are_those_of_the_batch() -> None:
    """Two documents: a conversation of two turns, and one whose turns were not located."""

    def run(end: int, kind: RunKind, turn: int) -> dict[str, Any]:
        return {"end": end, "kind": int(kind), "turn": turn, "train": True}

    located = [
        run(2, RunKind.PROMPT, 0),
        run(3, RunKind.HISTORY, 1),
        run(4, RunKind.HISTORY_END, 1),
        run(6, RunKind.USER, 2),
        run(7, RunKind.ASSISTANT, 3),
        run(8, RunKind.END, 3),
    ]
    unknown = [run(1, RunKind.UNPROVED, 0), run(3, RunKind.UNPROVED_COMPLETION, 1)]
    rows = [
        {"input_ids": [1, 2, 5, STOP, 1, 2, 6, STOP], "runs": located},
        {"input_ids": [1, 5, STOP], "runs": unknown},
    ]
    rest = {"group": "", "digest": bytes(16), "line": 0, "sub": -1, "straddles": 0}
    batch = pa.RecordBatch.from_pylist([row | rest for row in rows], schema=ENCODED)
    alone = [
        PromptAlone(0, 1, True, np.array([1, 2], np.int32)),
        PromptAlone(0, 3, False, np.array([1, 2, 5, STOP, 1, 3], np.int32)),
        PromptAlone(1, 1, False, np.array([1], np.int32)),
    ]
    assert [tuple(one) for one in prove(batch, alone, {STOP})] == [
        (0, 1, True, Outcome.EXACT),
        (0, 3, False, Outcome.PREFIX),
        (1, 1, False, Outcome.UNPROVED),
    ]


CHAT: Messages = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hm!Ho"},
    {"role": "user", "content": "And"},
    {"role": "assistant", "content": "So!Yes"},
]


def test_which_turns_are_tried_depends_on_the_content_alone() -> None:
    example = Example(0, -1, "", CHAT[:3], CHAT[3:], None)
    digests = [bytes([0, 0, *number.to_bytes(2, "little"), 0]) for number in range(1 << 16)]
    turns = Counter(index for digest in digests for index in chosen_turns(example, digest, every=False))
    assert turns == {1: 128, 3: 128}, "one conversation in 512, two turns each"
    flagged = example._replace(completion=[CHAT[3] | {"train": False}])
    assert list(chosen_turns(flagged, bytes(16), every=True)) == [1], "what is not trained is not tried"
    assert list(chosen_turns(Example(0, -1, "", "a", "b", None), bytes(16), every=True)) == []
    assert list(chosen_turns(Example(0, -1, "", None, None, "a"), bytes(16), every=True)) == []


def test_whom_to_believe() -> None:
    added = {"<|im_end|>": 2, "<eos>": 3}
    assert StopTokens.of(["<|im_end|>"], [], "<eos>", added).ids == {2}
    assert StopTokens.of(["<|im_end|>"], [4], "<eos>", added).ids == {2, 4}
    assert StopTokens.of([], [4], "<eos>", added).ids == {4}
    assert StopTokens.of([], [], "<eos>", added).ids == {3}
    assert StopTokens.of([], [], None, added).ids == set()
    assert StopTokens.of(["<|im_end|>"], [4], "<eos>", added).unnamed == (2,)
    assert StopTokens.of(["<|im_end|>"], [2, 4], "<eos>", added).unnamed == ()
    assert StopTokens.of(["<|im_end|>"], [], "<eos>", added).unnamed == (2,), "the tokenizer names another"
    assert StopTokens.of(["<|im_end|>"], [], None, added).unnamed == (), "nothing else is named"
