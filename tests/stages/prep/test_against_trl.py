"""Every format that TRL converts, too: the same rows come out."""

import copy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from packtrain.schemas.rows import Example
from packtrain.stages.prep import make_format
from packtrain.stages.prep.preference import PreferenceFormat
from packtrain.stages.prep.sharegpt import ROLES

from tests.support.examples import examples

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.slow

TURN = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant", "system"]),
    st.sampled_from(["", "a", "b", " "]),
)
TURNS = st.lists(TURN, max_size=3)
TEXT = st.text(alphabet="ab ", max_size=6)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """Pairs with a beginning in common more often than not, and a prompt of either kind, or none."""
    side: Any = draw(st.sampled_from([TURNS, TEXT]))
    shared, empty = draw(side), [] if side is TURNS else ""
    row = {"chosen": shared + draw(side), "rejected": shared + draw(side)}
    prompt = draw(st.sampled_from([None, "text", "messages", "the same"]))
    if prompt == "text":
        row["prompt"] = draw(TEXT)
    elif prompt == "messages":
        row["prompt"] = draw(TURNS)
    elif prompt == "the same":
        row["prompt"] = shared or empty
    return row


@examples(300)
@given(rows())
def test_the_same_as_trl(row: dict[str, Any]) -> None:
    """What is not refused is what TRL makes of it, but for three things that TRL gets wrong or does not do."""
    done = PreferenceFormat().prepare([(0, copy.deepcopy(row))])
    if not done.examples:  # such as texts without a prompt
        assert done.rejects
        return
    (made,) = done.examples
    conversation, prompt = isinstance(row["chosen"], list), row.get("prompt")
    given_prompt = prompt if isinstance(prompt, list) and prompt else None
    theirs = trl.maybe_extract_prompt(copy.deepcopy(row))
    if conversation and given_prompt and made.completion != row["chosen"]:
        # Answers that repeat the prompt would have it twice.
        assert row["chosen"] == given_prompt + made.completion  # type: ignore[operator]
        assert row["rejected"] == given_prompt + made.rejected  # type: ignore[operator]
        theirs = {"prompt": given_prompt, "chosen": made.completion, "rejected": made.rejected}
    elif conversation and isinstance(prompt, str) and not theirs["prompt"]:
        # TRL loses a text beside messages that begin otherwise.
        theirs = {"prompt": [{"role": "user", "content": prompt}], "chosen": row["chosen"], "rejected": row["rejected"]}
    assert {"prompt": made.prompt, "chosen": made.completion, "rejected": made.rejected} == {
        key: theirs[key] for key in ("prompt", "chosen", "rejected")
    }


def one(name: str, row: dict[str, Any]) -> Example:
    done = make_format(name).prepare([(0, copy.deepcopy(row))])
    assert done.rejects == []
    (made,) = done.examples
    return made


def messages_of(made: Example) -> Any:
    return made.prompt + made.completion  # type: ignore[operator]


SPOKEN = st.fixed_dictionaries(
    {
        "from": st.sampled_from(["user", "assistant", "system", "tool", "human", "gpt", "observation"]),
        "value": st.text(),
    },
    optional={"weight": st.just(1), "name": st.text(), "score": st.floats(0, 1)},
)


@examples(300)
@given(st.lists(SPOKEN, min_size=1, max_size=5), st.booleans())
def test_sharegpt_is_chatml_as_trl_converts_it(turns: list[Any], under_messages: bool) -> None:
    assume(turns[-1]["value"].strip())  # a blank last answer is rejected
    made = messages_of(one("sharegpt", {"conversations": turns}))
    key = "messages" if under_messages else "conversations"
    theirs = trl.maybe_convert_to_chatml({key: copy.deepcopy(turns)})["messages"]
    # TRL leaves the roles as they are called, which templates do not know.
    assert made == [message | {"role": ROLES[message["role"]]} for message in theirs]
