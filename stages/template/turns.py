"""Locates the assistant's turns in a rendered conversation, and where the completion begins, or says why they cannot be
located with certainty.

A rendering is known by its text and its `words`: which stretches came from which message. The template wrote the rest.
Where it marks what the assistant says with `{% generation %}`, these blocks are the turns. Else, for each assistant
message, this gives

1. its words: from the first stretch that came from it to the last, with nothing of another message between them;
2. where it begins: where generation would begin, after the generation prompt. That is found in what the template wrote
   before the words, or by rendering the messages before it with a generation prompt, provided that the text continues
   as this rendering does after the last words before the turn. What follows is generated, also an empty thought;
3. where it ends: after the special token with which the template ends an answer.

A step that fails raises `UnprovedError`; nothing is guessed. Contents are never searched: they may contain the
template's own markers.
"""

from bisect import bisect_left
from collections.abc import Hashable, Sequence

from ...schemas.errors import RowRejectedError
from .chat import Chat, Turn, UnprovedError
from .marked import ASSISTANT, CLOSING, bare
from .tracked_str import CALL, GENERATION, MESSAGE, code_of
from .turn_ends import end_of_turn, last_word_of


def locate(chat: Chat) -> tuple[list[Turn], int]:
    """Return the assistant's turns, and where the completion begins.

    Raises:
        UnprovedError: the turns cannot be located with certainty.
        RowRejectedError: see `completion_start`.
    """
    if chat.own.tangled >= 0:
        raise UnprovedError("its content has more thoughts than one at its beginning", chat.own.tangled)
    turns = _generated_turns(chat) if chat.manner.generation else _turns_by_words(chat)
    begin = completion_start(chat, turns)
    return _with_next_stops(chat, turns, begin), begin


def completion_start(chat: Chat, turns: Sequence[Turn] = ()) -> int:
    """Return where the completion begins: with its first message, if that is one of the turns that were located.

    Else it begins where the text departs from the prompt's own rendering with a generation prompt. If the two already
    differ among the prompt's words, it begins with the completion's words. Without a prompt, a completion that the user
    begins is the whole text; without a completion, it begins at the text's end.

    Raises:
        RowRejectedError: the template refuses the prompt alone; `unproved`, if words of the prompt follow.
    """
    text, words, cut = chat.text, chat.words, chat.cut
    if cut == len(chat.own.roles):
        return len(text)
    own = code_of(cut)
    last = max((end for _, end, code in words if 0 <= code < own), default=0)  # an empty question counts, too
    answers = [(begin, end) for begin, end, code in words if code >= own]
    anchor = min((begin for begin, _ in answers), default=len(text))
    if last > min((begin for begin, end in answers if begin < end), default=last):
        raise RowRejectedError("unproved", "the template writes words of the prompt after the completion begins")
    for turn in turns:
        if turn.message == cut:
            return turn.begin
    if not cut and chat.own.roles[0] != ASSISTANT:
        return 0
    low = max([last, *(earlier.end for earlier in turns if earlier.message < cut)])
    if cut:
        alone, alone_words = chat.head(cut)
        shared = _shared(alone, text)
        said = 0 if shared == len(alone) else max((end for _, end, _ in alone_words), default=0)
        if shared >= max(low, said) or shared >= anchor:
            return max(shared, low)
    return anchor


def _generated_turns(chat: Chat) -> list[Turn]:
    """Locate the turns of a conversation whose template has generation blocks: turns are exactly the blocks' contents.

    Raises:
        UnprovedError: no block was rendered despite assistant messages, or a block belongs to no message.
    """
    said = [index for index, role in enumerate(chat.own.roles) if role == ASSISTANT]
    blocks = [(begin, end) for begin, end, code in chat.words if code == GENERATION]
    if said and not blocks:
        raise UnprovedError("the template rendered no generation block")
    words = [word for word in chat.words if word[2] != GENERATION]
    turns: list[Turn] = []
    for number, (begin, end) in enumerate(blocks):
        if turns and begin < turns[-1].end:
            raise UnprovedError("generation blocks are nested")
        low = high = bisect_left(words, (begin, 0, 0))
        while high < len(words) and words[high][1] <= end:
            high += 1
        owners = {word[2] >> MESSAGE for word in words[low:high]}
        if not owners and len(blocks) == len(said):
            owners = {said[number]}
        elif not owners and turns and begin == turns[-1].end:  # what ends a turn may stand in a block of its own
            stop, stop_end = turns[-1].stop, turns[-1].stop_end
            if stop == stop_end:
                stop, stop_end = _closing_within(chat, begin, end)
            turns[-1] = turns[-1]._replace(stop=stop, stop_end=stop_end, end=end)
            continue
        if len(owners) != 1:
            raise UnprovedError("a generation block does not belong to one message")
        stop, stop_end = _closing_within(chat, words[high - 1][1] if low < high else begin, end)
        turns.append(Turn(owners.pop(), begin, stop, stop_end, end))
    return turns


def _closing_within(chat: Chat, low: int, high: int) -> tuple[int, int]:
    """Where the closing tokens between two places begin and end; `high` twice if there are none."""
    stop, end = chat.manner.gaps.closing_span(chat.text[low:high])
    return (low + stop, low + end) if stop < end else (high, high)


def _turns_by_words(chat: Chat) -> list[Turn]:
    """The turns of a conversation whose template has no generation blocks.

    Raises:
        UnprovedError: a turn cannot be located with certainty.
    """
    text, words, manner = chat.text, chat.words, chat.manner
    said = [index for index, role in enumerate(chat.own.roles) if role == ASSISTANT]
    if not said:
        return []
    owners = [code >> MESSAGE for _, _, code in words]
    last = {owner: place for place, owner in enumerate(owners)}
    first = {owner: place for place, owner in reversed([*enumerate(owners)])}
    # If words of every message were found, the template wrote the text between words. Else that text may contain words
    # that were not followed, and must not be searched.
    complete = {*first} >= {code >> MESSAGE for code in chat.own.said}
    for index in said:
        if index not in first:
            return _turns_by_words(_with_blank_word(chat, index, complete=complete))
    calling = chat.own.saying(CALL)
    tails = _Tails(chat)
    turns: list[Turn] = []
    ended = 0
    for index in said:
        low_word, high_word = first[index], last[index]
        if index in calling and not any(word[2] & CALL for word in words[low_word : high_word + 1]):
            raise UnprovedError("the template leaves its tool calls out of the text", index)
        if low_word < high_word:
            high_word = last_word_of(chat, low_word, high_word)
            if owners[low_word : high_word + 1].count(index) <= high_word - low_word:
                raise UnprovedError("it contains words of other messages", index)
        low = words[low_word - 1][1] if low_word else 0
        anchor, (_, done, code) = words[low_word][0], words[high_word]
        before = text[low:anchor]
        fixed = manner.searched is None
        if complete and fixed and manner.opening and before.count(manner.opening) == 1:
            begin = low + before.index(manner.opening) + len(manner.opening)
        else:
            begin = _begin_by_head(chat, low, low_word, done, complete=complete, tails=tails)
        if begin < ended:
            raise UnprovedError("it begins before the previous turn ends", index)
        follower, high = _follower(chat, index, high_word)
        stop, end = end_of_turn(chat, index, max(done, begin), follower, high, calling=code & CALL > 0)
        turns.append(Turn(index, begin, stop, end, end))
        ended = end
    return turns


def _with_blank_word(chat: Chat, index: int, *, complete: bool) -> Chat:
    """The conversation with an empty word where a turn without words begins: a template may skip blank contents.

    Raises:
        UnprovedError: the message has words, or nothing shows where its turn is.
    """
    text, opening = chat.text, chat.manner.opening
    is_said = any(code >> MESSAGE == index for code in chat.own.said)
    place = next((place for place, word in enumerate(chat.words) if word[2] >> MESSAGE > index), len(chat.words))
    low = chat.words[place - 1][1] if place else 0
    high = chat.words[place][0] if place < len(chat.words) else len(text)
    dropped = UnprovedError("the template drops its text, or rewrites all of it", index)
    if is_said or not index or any(word[2] >> MESSAGE > index for word in chat.words[:place]):
        raise dropped
    if complete and chat.manner.searched is None and opening and text.count(opening, low, high) == 1:
        begin = text.index(opening, low, high) + len(opening)
    else:
        blank = (low, low, code_of(index))
        tail = _tail_of_head(chat._replace(words=[*chat.words[:place], blank, *chat.words[place:]]), low, place)
        begin = low + len(tail)
        if begin > high or not text.startswith(tail, low):
            raise dropped
    words = [*chat.words[:place], (begin, begin, code_of(index)), *chat.words[place:]]
    return chat._replace(words=words)


def _follower(chat: Chat, index: int, last: int) -> tuple[int | None, int]:
    """The message whose words come after a turn's last word, None if the text ends, and where they begin. The words of
    the turn's own message that are there repeat a call's name, in that message's header.
    """
    for begin, _, code in chat.words[last + 1 :]:
        if code >> MESSAGE != index:
            return code >> MESSAGE, begin
    return None if index == len(chat.own.roles) - 1 else -1, len(chat.text)


class _Tails:
    """What the messages before each turn of a row, rendered with a generation prompt, have after their last words.

    One rendering serves for all turns before which the row looks alike: the text before their words, the role of the
    message before, and which of the texts that decide the generation prompt the messages before have. Mistral's
    template has no generation prompt that could be found in the text, so a row of n turns would need n renderings.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._tails: dict[Hashable, str] = {}

    def before(self, low: int, place: int) -> str:
        """The tail before a turn.

        Args:
            low, place: see `_begin_by_head`.
        """
        chat = self._chat
        anchor, _, code = chat.words[place]
        index = code >> MESSAGE
        if not chat.known:
            return _tail_of_head(chat, low, place)
        distance = index - (chat.words[place - 1][2] >> MESSAGE) if place else 0
        shape = chat.text[low:anchor], chat.own.roles[index - 1], distance, self._searched(index)
        if shape not in self._tails:
            self._tails[shape] = _tail_of_head(chat, low, place)
        return self._tails[shape]

    def _searched(self, index: int) -> Hashable:
        """Which of the texts that the template looks for are in the message before an index, and in all before."""
        searched = self._chat.manner.searched
        if not searched:
            return ()
        messages = self._chat.own.chat[:index]
        contents = [content for message in messages if isinstance(content := message.get("content"), str)]
        everywhere = {text for text in searched if any(text in content for content in contents)}
        return frozenset(everywhere), frozenset(text for text in everywhere if text in contents[-1])


def _begin_by_head(chat: Chat, low: int, place: int, done: int, *, complete: bool, tails: _Tails) -> int:
    """Find where a turn begins, by rendering what comes before it with a generation prompt.

    Only the text after the last words before the turn is compared, because the generation prompt is there. Earlier
    messages may be rendered differently without the turn, such as tools in the last question.

    There are three cases. The text continues like that rendering to its end. Or it does so up to the turn's words, and
    the rest of the rendering belongs to the generation prompt alone (such as an empty thinking block that the template
    leaves out of earlier turns), unless the words begin with it. Or the text closes a thought that the generation
    prompt opens, with nothing in it: the turn begins after these tags, because what a model would generate there is not
    in the data. The role's token, with which the generation prompt begins, must be shared.

    Args:
        low, place, done: where the words before it end, the index of its first word, and where its last word ends.
        complete: whether all text between words is the template's.
        tails: of the row.
    """
    text, words, opening = chat.text, chat.words, chat.manner.opening
    anchor, _, code = words[place]
    index = code >> MESSAGE
    if not index:
        raise UnprovedError("no text before it marks where it begins", index)
    tail = tails.before(low, place)
    same, full = low + _shared(tail, text[low:]), low + len(tail)
    if same == full <= anchor:
        return same
    opened = bool(opening) and tail.endswith(opening)
    if opened and same >= anchor > full - len(opening):
        return same if same == full <= done else anchor
    stops = chat.manner.stops
    role = stops.search(opening)
    if opened and complete and role and same >= full - len(opening) + role.end():
        closing = text.rfind(CLOSING, same, anchor)
        tags = closing + len(CLOSING)
        if closing >= 0 and not bare(text[same:closing]) and not stops.search(text, same, tags):
            return tags
    raise UnprovedError("the text before its words is not the generation prompt", index)


def _tail_of_head(chat: Chat, low: int, place: int) -> str:
    """What the messages before a turn, rendered with a generation prompt, have after their last words.

    Args:
        low, place: see `_begin_by_head`.
    """
    text, words = chat.text, chat.words
    anchor, _, code = words[place]
    index = code >> MESSAGE
    try:
        head, head_words = chat.head(index)
    except RowRejectedError as error:
        raise UnprovedError("the template refuses the messages before it", index) from error
    if low <= len(head) <= anchor and text.startswith(head):
        return head[low:]  # the text is the same, so it does not matter which message each word came from
    if not place:
        return head
    begin, end, owner = head_words[-1] if head_words else (0, 0, -1)
    if owner != words[place - 1][2] or head[begin:end] != text[words[place - 1][0] : low]:
        raise UnprovedError("the text before it changes when the turn is left out", index)
    return head[end:]


def _shared(one: str, other: str) -> int:
    """How many first characters two texts share."""
    if other.startswith(one):
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def past_space(text: str, low: int, high: int) -> int:
    """The first place from `low` on that is not white space, at most `high`."""
    while low < high and text[low].isspace():
        low += 1
    return low


def _with_next_stops(chat: Chat, turns: list[Turn], completion: int) -> list[Turn]:
    """The turns, with the stop tokens that stand in the headers after them.

    A header of the assistant's own ends no turn: a model is not asked to generate two turns. Neither does one in which
    the completion begins.
    """
    text, roles, headers = chat.text, chat.own.roles, chat.manner.header_stops
    out = []
    for turn in turns:
        follower = turn.message + 1
        if turn.stop == turn.stop_end and follower < len(roles) and roles[follower] != ASSISTANT:
            found = headers.match(text, past_space(text, turn.end, len(text)))
            if found is not None and not turn.end < completion < found.end():
                after = chat.words[bisect_left(chat.words, (turn.end, 0, 0)) :]
                others = (begin for begin, _, code in after if code >= 0 and code >> MESSAGE != turn.message)
                high = next(others, len(text))
                turn = turn._replace(next_stop=found.end() if found.end() <= high else 0)
        out.append(turn)
    return out
