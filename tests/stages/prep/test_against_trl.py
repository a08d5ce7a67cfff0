"""Preference pairs, which TRL converts, too: the same rows come out."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.prep.preference import PreferenceFormat

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
