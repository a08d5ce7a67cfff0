"""Finds where the completion of a rendered conversation begins."""

from collections.abc import Sequence

from .assistant_turns import MESSAGE, TemplateProfile, Turn, Word, code_of, common_prefix


def completion_start(
    text: str,
    words: Sequence[Word],
    cut: int,
    count: int,
    turns: Sequence[Turn],
    head: str,
    said: int,
    manner: TemplateProfile,
) -> tuple[int, bool]:
    """Return where the completion begins, and whether the prompt alone is rendered differently than within the
    conversation.

    It begins where the text departs from the prompt's own rendering with a generation prompt. If the two already differ
    among the prompt's words, it begins after the generation prompt, if that occurs once between the words of prompt and
    completion; else with the completion's words.

    Args:
        words: empty if they could not be followed. cut, count: number of messages in the prompt and in the
        conversation.
        turns: the turns that were located.
        head: the prompt's own text.
        said: where the words in `head` end; ignored if the text begins with all of `head`.
    """
    turn = next((turn for turn in turns if turn.message == cut), None)
    shared, own = common_prefix(head, text), code_of(cut)
    if turn is not None:
        anchor = turn.begin
        if shared == len(head) >= anchor and not manner.generation:
            return anchor, False
    else:
        anchor = min((begin for begin, _, code in words if code >= own), default=len(text))
    low = max(
        *(end for _, end, code in words if 0 <= code < own and end <= anchor),
        *(earlier.end for earlier in turns if earlier.message < cut),
        0,
        0,
    )
    if turn is not None and not manner.generation:
        return anchor, shared < max(low, said)
    if shared >= max(low, said) or shared >= anchor:
        return max(shared if turn is None else min(shared, anchor), low), False
    before = text[low:anchor]
    complete = (
        len({code >> MESSAGE for _, _, code in words if code >= 0}) == count
    )  # otherwise there may be words that were not followed
    if turn is None and complete and manner.opening and before.count(manner.opening) == 1:
        return low + before.index(manner.opening) + len(manner.opening), True
    return anchor, True
