"""Finds where the completion of a rendered conversation begins."""

from collections.abc import Sequence

from .assistant_turns import MESSAGE, Head, TemplateProfile, Turn, Word, code_of, common_prefix


def completion_start(
    text: str,
    words: Sequence[Word],
    cut: int,
    count: int,
    turns: Sequence[Turn],
    head: Head,
    manner: TemplateProfile,
) -> int:
    """Return where the completion begins: with its first message, if that is a turn that was located.

    Else it begins where the text departs from the prompt's own rendering with a generation prompt. If the two already
    differ among the prompt's words, it begins after the generation prompt, if that occurs once between the words of
    prompt and completion; else with the completion's words. Without a prompt it begins at 0; without a completion, at
    the text's end.

    Args:
        cut, count: number of messages in the prompt and in the conversation.
        turns: the turns that were located.
        head: renders the prompt alone, if that is needed.

    Raises:
        RowRejectedError: the template refuses the prompt alone.
    """
    if not 0 < cut < count:
        return len(text) if cut else 0
    begin = next((turn.begin for turn in turns if turn.message == cut), None)
    if begin is not None:
        return begin
    alone, alone_words = head(cut)
    shared, own = common_prefix(alone, text), code_of(cut)
    said = 0 if shared == len(alone) else max((end for _, end, _ in alone_words), default=0)
    anchor = min((begin for begin, _, code in words if code >= own), default=len(text))
    low = max(
        *(end for _, end, code in words if 0 <= code < own and end <= anchor),
        *(earlier.end for earlier in turns if earlier.message < cut),
        0,
        0,
    )
    if shared >= max(low, said) or shared >= anchor:
        return max(shared, low)
    before = text[low:anchor]
    # Otherwise there may be words that were not followed.
    complete = len({code >> MESSAGE for _, _, code in words if code >= 0}) == count
    if complete and manner.opening and before.count(manner.opening) == 1:
        return low + before.index(manner.opening) + len(manner.opening)
    return anchor
