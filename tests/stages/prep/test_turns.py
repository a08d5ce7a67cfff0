"""One example a turn, by eye and in general."""

import json
from collections import Counter
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options, make_format


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


A, B = said("user", "A"), said("user", "B")
a, b, c = said("assistant", "a"), said("assistant", "b"), said("assistant", "c")


def examples(name: str, row: Any, options: Options, skipped: "Counter[str] | None" = None) -> list[Example]:
    made = make_format(name, options)
    return made.examples(made.decode(json.dumps(row).encode()), 3, skipped)


def messages(*chat: dict[str, Any], skipped: "Counter[str] | None" = None, **more: Any) -> list[Example]:
    return examples("messages", {"messages": list(chat), **more}, Options(per_turn=True), skipped)


def test_one_conversation_is_one_group_and_another_is_another() -> None:
    groups = [{one.group for one in messages(*chat)} for chat in ((A, a, B, b), (A, a, B, b), (A, a, B, c))]
    assert groups[0] == groups[1] != groups[2]


TURN = st.builds(
    said,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.text(max_size=3).map(lambda text: text if text.strip() else ""),
)


@given(st.lists(st.tuples(TURN, st.sampled_from([None, True, False])), min_size=1, max_size=8))
def test_every_turn_is_the_completion_of_one_example(turns: list[tuple[dict[str, Any], bool | None]]) -> None:
    chat = [turn if train is None else turn | {"train": train} for turn, train in turns]
    assume(chat[-1]["role"] != "assistant" or chat[-1]["content"])
    skipped: Counter[str] = Counter()
    made = messages(*chat, skipped=skipped)
    spoken = [i for i, turn in enumerate(chat) if turn["role"] == "assistant"]
    wanted = [i for i in spoken if chat[i].get("train") is not False and chat[i]["content"]]
    if wanted:
        assert [one.sub for one in made] == list(range(len(wanted)))
        assert [one.prompt for one in made] == [chat[:i] for i in wanted]
        assert [one.completion for one in made] == [[chat[i]] for i in wanted]
        assert len({one.group for one in made}) == 1
        assert skipped.total() == len(spoken) - len(wanted)
    else:
        (only,) = made
        assert (only.prompt or []) + (only.completion or []) == chat  # type: ignore[operator]


def test_a_turn_of_which_only_a_part_is_trained_gives_an_example() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "train": True}]
    chat = [A, {**a, "content": parts, "train": False}, B, b | {"train": False}]
    skipped: Counter[str] = Counter()
    (made,) = messages(*chat, skipped=skipped)
    assert made.completion == [chat[1]]
    assert skipped == {"not_trained": 1}
