"""Finds where the completion of a rendered conversation begins."""

from collections.abc import Sequence

from .assistant_turns import ASSISTANT, MESSAGE, Head, TemplateProfile, Turn, Word, code_of, common_prefix


def completion_start(
    text: str,
    words: Sequence[Word],
    cut: int,
    roles: Sequence[str],
    turns: Sequence[Turn],
    head: Head,
    manner: TemplateProfile,
) -> int:
    """Return where the completion begins: with its first message, if that is a turn that was located.

    Else it begins where the text departs from the prompt's own rendering with a generation prompt. If the two already
    differ among the prompt's words, it begins after the generation prompt, if that occurs once between the words of
    prompt and completion; else with the completion's words, or the second time that these are written, if the prompt's
    follow the first. Without a prompt, a completion that the user begins is the whole text; without a completion, it
    begins at the text's end.

    Args:
        cut: number of messages in the prompt.
        roles: one per message.
        turns: the turns that were located.
        head: renders the prompt alone, if that is needed.

    Raises:
        RowRejectedError: the template refuses the prompt alone.
    """
    if cut == len(roles):
        return len(text)
    begin = next((turn.begin for turn in turns if turn.message == cut), None)
    if begin is not None:
        return begin
    if not cut and roles[0] != ASSISTANT:
        return 0
    own = code_of(cut)
    anchor = min((begin for begin, _, code in words if code >= own), default=len(text))
    last = max((end for begin, end, code in words if 0 <= code < own and begin < end), default=0)
    later = {code: begin for begin, _, code in reversed(words) if code >= own and begin >= last}
    if later and later.keys() == {code for _, _, code in words if code >= own}:
        anchor = min(later.values())
    low = max(
        *(end for _, end, code in words if 0 <= code < own and end <= anchor),
        *(earlier.end for earlier in turns if earlier.message < cut),
        0,
        0,
    )
    if cut:
        alone, alone_words = head(cut)
        shared = common_prefix(alone, text)
        said = 0 if shared == len(alone) else max((end for _, end, _ in alone_words), default=0)
        if shared >= max(low, said) or shared >= anchor:
            return max(shared, low)
    before = text[low:anchor]
    # Otherwise there may be words that were not followed.
    complete = len({code >> MESSAGE for _, _, code in words if code >= 0}) == len(roles)
    if complete and manner.opening and before.count(manner.opening) == 1:
        return low + before.index(manner.opening) + len(manner.opening)
    return anchor
