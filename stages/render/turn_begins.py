"""Where a turn of the assistant begins: where generation would begin, after the generation prompt.

That is found in what the template wrote before the turn's first source span, or by rendering the messages before it
with a generation prompt, provided that the text continues as this rendering does. What follows is generated, also an
empty thought.
"""

from collections.abc import Hashable

from ...schemas.errors import RowRejectedError
from ..template.tracked_messages import CLOSING_TAG, without_tags
from ..template.tracked_str import SourceSpan, message_of, origin_of
from .rendered_chat import RenderedChat, UnprovedError


class PromptTails:
    """What the messages before each turn of a row, rendered with a generation prompt, have after their last source
    span.

    One rendering serves for all turns before which the row looks alike: the text before their contents, the role of the
    message before, and which of the texts that decide the generation prompt the messages before have. Mistral's
    template has no generation prompt that could be found in the text, so a row of n turns would need n renderings: one
    of 8 turns takes 0.25 ms in place of 0.54 ms.
    """

    def __init__(self, chat: RenderedChat) -> None:
        self._chat = chat
        self._tails: dict[Hashable, str] = {}

    def before(self, first: int) -> str:
        """The tail before a turn.

        Args:
            first: place of the turn's first source span.
        """
        chat = self._chat
        if not chat.is_row:
            # In a trace, the content of each turn is guarded by the rendering before it, so none may be left out.
            return _prompt_tail(chat, first)
        span = chat.source_spans[first]
        distance = span.message - chat.source_spans[first - 1].message if first else 0
        text_before = chat.text[_gap_begin(chat, first) : span.begin]
        role_before = chat.tracked.roles[span.message - 1]
        # Messages in between that left no text may still change the prompt, so how many there are counts, too.
        key = (text_before, role_before, distance, self._searched_texts_before(span.message))
        if key not in self._tails:
            self._tails[key] = _prompt_tail(chat, first)
        return self._tails[key]

    def _searched_texts_before(self, message: int) -> Hashable:
        """Which of the texts that the template looks for are in any message before one, and in the last of these."""
        searched_texts = self._chat.profile.searched_texts
        if not searched_texts:
            return ()
        contents = [earlier.get("content") for earlier in self._chat.tracked.for_template[:message]]
        texts = [content for content in contents if isinstance(content, str)]
        # Templates look through all messages, as for a tool's answer, or at the last one, as for `/no_think`.
        in_any = frozenset(searched for searched in searched_texts if any(searched in text for text in texts))
        in_last = frozenset(searched for searched in in_any if searched in texts[-1])
        return in_any, in_last


def find_turn_begin(chat: RenderedChat, first: int, contents_end: int, *, is_complete: bool, tails: PromptTails) -> int:
    """Where a turn begins.

    Args:
        first: place of the turn's first source span.
        contents_end: where its last source span ends.
        is_complete: whether the template wrote all text between source spans.
        tails: of the row.

    Raises:
        UnprovedError: the text before the turn is not that after which generation would begin.
    """
    if is_complete:
        begin = _generation_prompt_end(chat, _gap_begin(chat, first), chat.source_spans[first].begin)
        if begin is not None:
            return begin
    return _begin_by_rendering(chat, first, contents_end, is_complete=is_complete, tails=tails)


def with_blank_span(chat: RenderedChat, message: int, *, is_complete: bool) -> RenderedChat:
    """The conversation with an empty source span where a turn without any begins: a template may skip blank contents.

    Args:
        message: index of the turn's message.
        is_complete: see `find_turn_begin`.

    Raises:
        UnprovedError: the message has contents, or nothing shows where its turn is.
    """
    spans = list(chat.source_spans)
    place = next((place for place, span in enumerate(spans) if span.message > message), len(spans))
    gap_begin = spans[place - 1].end if place else 0
    gap_end = spans[place].begin if place < len(spans) else len(chat.text)
    is_dropped = any(message_of(origin) == message for origin in chat.tracked.contents)
    begin = None
    if message > 0 and not is_dropped:
        begin = _generation_prompt_end(chat, gap_begin, gap_end) if is_complete else None
        if begin is None:
            begin = _blank_turn_begin(_with_empty_span(chat, message, place, gap_begin), place, gap_end)
    if begin is None:
        raise UnprovedError("the template drops its text, or rewrites all of it", message)
    return _with_empty_span(chat, message, place, begin)


def _with_empty_span(chat: RenderedChat, message: int, place: int, begin: int) -> RenderedChat:
    """The conversation with an empty source span of a message, which is at a place among the others afterwards."""
    spans = chat.source_spans
    empty_span = SourceSpan(begin, begin, origin_of(message))
    return chat._replace(source_spans=[*spans[:place], empty_span, *spans[place:]])


def _blank_turn_begin(chat: RenderedChat, place: int, gap_end: int) -> int | None:
    """Where a turn with an empty span begins, by rendering the messages before it; None if the text does not go on so.

    Args:
        place: of the empty span, at the beginning of the gap.
        gap_end: where the contents of the next message begin.
    """
    tail = _prompt_tail(chat, place)
    gap_begin = chat.source_spans[place].begin
    begin = gap_begin + len(tail)
    return begin if begin <= gap_end and chat.text.startswith(tail, gap_begin) else None


def _gap_begin(chat: RenderedChat, first: int) -> int:
    """Where the template's text before a turn begins: at the end of the source span before its first one."""
    return chat.source_spans[first - 1].end if first else 0


def _generation_prompt_end(chat: RenderedChat, begin: int, end: int) -> int | None:
    """Where the generation prompt between two places ends; None if it is not there exactly once, or may differ from row
    to row.
    """
    generation_prompt = chat.profile.generation_prompt
    if not chat.profile.has_fixed_prompt or not generation_prompt:
        return None
    if chat.text.count(generation_prompt, begin, end) != 1:
        return None
    return chat.text.index(generation_prompt, begin, end) + len(generation_prompt)


def _begin_by_rendering(
    chat: RenderedChat, first: int, contents_end: int, *, is_complete: bool, tails: PromptTails
) -> int:
    """Find where a turn begins, by rendering what comes before it with a generation prompt; see `find_turn_begin`.

    Only the text after the last source span before the turn is compared, because the generation prompt is there.
    Earlier messages may be rendered differently without the turn, such as tools in the last question.
    """
    text = chat.text
    generation_prompt = chat.profile.generation_prompt
    first_span = chat.source_spans[first]
    if first_span.message == 0:
        raise UnprovedError("no text before it marks where it begins", first_span.message)
    gap_begin = _gap_begin(chat, first)
    tail = tails.before(first)
    tail_end = gap_begin + len(tail)
    shared_end = gap_begin + shared_prefix_length(tail, text[gap_begin:])

    # Case 1: before the turn's contents, the text continues like the rendering to its end.
    if shared_end == tail_end <= first_span.begin:
        return tail_end

    # Case 2: it does so up to the contents, and the rest of the rendering belongs to the generation prompt alone, such
    # as an empty thinking block that the template leaves out of earlier turns. The contents may begin with that rest.
    has_prompt = bool(generation_prompt) and tail.endswith(generation_prompt)
    prompt_begin = tail_end - len(generation_prompt)
    if has_prompt and shared_end >= first_span.begin > prompt_begin:
        contents_begin_with_rest = shared_end == tail_end <= contents_end
        return tail_end if contents_begin_with_rest else first_span.begin

    # Case 3: the text closes a thought that the generation prompt opens, with nothing in it. The role's token, with
    # which the generation prompt begins, must be shared.
    role_token = chat.profile.special_tokens.search(generation_prompt)
    if has_prompt and is_complete and role_token and shared_end >= prompt_begin + role_token.end():
        thought_end = _empty_thought_end(chat, shared_end, first_span.begin)
        if thought_end is not None:
            return thought_end
    raise UnprovedError("the text before its words is not the generation prompt", first_span.message)


def _empty_thought_end(chat: RenderedChat, begin: int, end: int) -> int | None:
    """Where the tag ends that closes an empty thought between two places; None if there is no such thought.

    Of `<|assistant|><think>\\n</think>\\n\\n4`, where the generation prompt ends in `<think>`, this is behind
    `</think>`. The turn begins there, because what a model would generate in the thought is not in the data.
    """
    tag_begin = chat.text.rfind(CLOSING_TAG, begin, end)
    tag_end = tag_begin + len(CLOSING_TAG)
    if tag_begin < 0 or without_tags(chat.text[begin:tag_begin]):
        return None
    # A special token in between would be the end of another turn, or the header of one.
    return None if chat.profile.special_tokens.search(chat.text, begin, tag_end) else tag_end


def _prompt_tail(chat: RenderedChat, first: int) -> str:
    """What the messages before a turn, rendered with a generation prompt, have after their last source span.

    Args:
        first: place of the turn's first source span.

    Raises:
        UnprovedError: the template refuses these messages, or writes the last of them differently then.
    """
    text = chat.text
    first_span = chat.source_spans[first]
    gap_begin = _gap_begin(chat, first)
    try:
        before = chat.rendered_before(first_span.message)
    except RowRejectedError as error:
        raise UnprovedError("the template refuses the messages before it", first_span.message) from error
    if gap_begin <= len(before.text) <= first_span.begin and text.startswith(before.text):
        # The text is the same, so it does not matter which message each part of it came from.
        return before.text[gap_begin:]
    if first == 0:
        return before.text
    span_before = chat.source_spans[first - 1]
    last_span = before.source_spans[-1] if before.source_spans else SourceSpan(0, 0, -1)
    has_same_origin = last_span.origin == span_before.origin
    has_same_text = before.text[last_span.begin : last_span.end] == text[span_before.begin : span_before.end]
    if not has_same_origin or not has_same_text:
        raise UnprovedError("the text before it changes when the turn is left out", first_span.message)
    return before.text[last_span.end :]


def shared_prefix_length(left: str, right: str) -> int:
    """How many first characters two texts share."""
    if right.startswith(left):
        return len(left)
    for place, (left_character, right_character) in enumerate(zip(left, right, strict=False)):
        if left_character != right_character:
            return place
    return min(len(left), len(right))
