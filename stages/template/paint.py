"""Says what each character of a rendered conversation is, and how much it counts in the loss.

Which part a piece of a turn is, follows from its words:

- *Thought*: words of a thought, with what the template writes before them in the turn, and with white space after them.
  If the turn has words of the message's own field (`reasoning_content`, `thinking`, `reasoning`, parts of such a type),
  these are the thought, and tags in the content are only words.
- *Tool call*: words of calls, with what the template writes around them, except the end of a thought before them.
- *Answer*: all else. So the tag that closes a thought is the answer's: a model that has to answer after a thought must
  generate it, as it must generate the token that ends a turn.

What the template writes but does not let be followed is not painted: `check_losses` finds it.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import RowRejectedError
from ...schemas.rows import SpanKind
from .chat import Chat, Turn, UnprovedError
from .marked import CLOSING, OPENING, is_blank
from .rendered import NOTHING, Spans, solid
from .tracked_str import CALL, GENERATION, MESSAGE, REASONING, TAGGED, Word
from .turns import past_space

_TURN = 5
"""A code of a character is the index of its message, shifted left by this many bits, plus its kind."""
_KIND = (1 << _TURN) - 1
_OF_PARTS = CALL | REASONING | TAGGED


class _Paint:
    """What each character of a text is. What is put later covers what was put before.

    Args:
        length: of the text, in characters.
    """

    def __init__(self, length: int) -> None:
        self.codes: NDArray[np.int32] = np.zeros(length, np.int32)
        self.weights: NDArray[np.float64] | None = None
        """(length,) how much each counts in the loss; None if all count 1, because rows may have millions."""

    def put(self, low: int, high: int, kind: SpanKind, message: int) -> None:
        """Say that the characters low..high are of a kind, and belong to a message."""
        if low < high:
            self.codes[low:high] = message << _TURN | kind

    def spans(self) -> Spans:
        """The spans: they end where something changes."""
        codes, weights = self.codes, self.weights
        if not len(codes):
            return NOTHING
        changes = codes[1:] != codes[:-1]
        if weights is not None:
            changes |= weights[1:] != weights[:-1]
        last = [*changes.nonzero()[0].tolist(), len(codes) - 1]
        found = codes[last].tolist()
        counting = weights[last].tolist() if weights is not None else [1.0] * len(last)
        return Spans(
            tuple([place + 1 for place in last]),
            tuple([code & _KIND for code in found]),
            tuple([code >> _TURN for code in found]),
            tuple([bool(weight) if weight in (0, 1) else weight for weight in counting]),
        )


def painted(chat: Chat, turns: Sequence[Turn], begin: int) -> Spans:
    """The spans of a conversation whose turns were located.

    Args:
        begin: where the completion begins.

    Raises:
        UnprovedError: a thought or a call of a turn cannot be located in it.
    """
    paint = _Paint(len(chat.text))
    _paint_turns(paint, chat, turns, begin)
    words: dict[int, list[Word]] = {message: [] for message in chat.own.saying(_OF_PARTS)}
    for word in chat.words if words else ():
        if word[2] >> MESSAGE in words:
            words[word[2] >> MESSAGE].append(word)
    for turn in turns:
        if turn.message in words:
            _paint_parts(paint, chat, turn, words[turn.message])
    if set(chat.own.flags) != {True}:
        _weigh(paint, chat.words, turns, chat.own.flags)
    return paint.spans()


def painted_unproved(chat: Chat, begin: int, why: str) -> Spans:
    """The spans of a conversation whose turns could not be located: its prompt and its completion.

    Args:
        begin: where the completion begins.
        why: why they could not.

    Raises:
        RowRejectedError: `train_flags`, if messages of the completion differ in theirs.
    """
    cut, length, flags = chat.cut, len(chat.text), chat.own.flags
    before, after = set(flags[:cut]), set(flags[cut:])
    if len(after) > 1:
        raise RowRejectedError(
            "train_flags",
            "messages of the completion have different `train` flags or weights, and the template does not show where "
            f"each of them lies ({why}); split the row",
        )
    spans = [
        (begin, SpanKind.UNPROVED, 0, min(before, default=True)),
        (length, SpanKind.UNPROVED_COMPLETION, min(cut, len(flags) - 1), min(after, default=True)),
    ]
    return solid(Spans(*zip(*spans, strict=True)))


def _paint_turns(paint: _Paint, chat: Chat, turns: Sequence[Turn], begin: int) -> None:
    """Paint turns and what is between them."""
    roles, cut = chat.own.roles, chat.cut
    length, done, final = len(chat.text), 0, len(roles) - 1
    following = 0
    for message, start, stop, stop_end, end, next_stop in (*turns, Turn(len(roles), length, length, length, length)):
        index = min(following, message, final)
        before = SpanKind.USER if following and roles[index] == "user" else SpanKind.PROMPT
        if done < begin:
            paint.put(done, min(begin, start), before, index)
        if begin < start:
            paint.put(max(begin, done), start, SpanKind.COMPLETION, cut if done < begin else index)
        if message > final:
            break
        earlier = message < cut
        paint.put(start, end, SpanKind.HISTORY if earlier else SpanKind.ASSISTANT, message)
        paint.put(stop, stop_end, SpanKind.HISTORY_END if earlier else SpanKind.END, message)
        done, following = end, message + 1
        if next_stop:
            kind = SpanKind.HISTORY_STOP_IN_NEXT_HEADER if done < begin else SpanKind.STOP_IN_NEXT_HEADER
            paint.put(done, next_stop, kind, message)
            done = next_stop


def _paint_parts(paint: _Paint, chat: Chat, turn: Turn, words: Sequence[Word]) -> None:
    """Paint the thoughts and calls of a turn, with what belongs to them. What follows an end-of-turn token in a
    generation block has no parts.

    Args:
        words: of the turn's message.

    Raises:
        UnprovedError: a thought is not the first part.
    """
    text, message, done, end = chat.text, turn.message, turn.begin, turn.stop
    thought, call = (
        (SpanKind.HISTORY_THOUGHT, SpanKind.HISTORY_CALL)
        if message < chat.cut
        else (SpanKind.THOUGHT, SpanKind.TOOL_CALL)
    )
    inside = ((max(low, done), min(high, end), code & _OF_PARTS) for low, high, code in words)
    mine = [word for word in inside if word[0] < word[1]]
    field = any(kind & REASONING and not is_blank(text[low:high]) for low, high, kind in mine)
    closings = {chat.manner.thought_end, CLOSING} - {""}
    last = -1
    for kind, neighbours in groupby([*mine, (end, end, -1)], itemgetter(2)):
        group = list(neighbours)
        low, high = group[0][0], group[-1][1]
        if last == call:
            paint.put(done, low, call, message)
        elif last == thought:
            paint.put(done, past_space(text, done, low), thought, message)
            done = past_space(text, done, low)
        gap = text[done:low]
        after = max([at + len(tag) for tag in closings if (at := gap.rfind(tag)) >= 0], default=0)
        start = past_space(text, done + after, low) if after else done
        if kind == CALL:
            paint.put(start, high, call, message)
            last = call
        elif kind == (REASONING if field else TAGGED):
            if last >= 0:
                raise UnprovedError("nothing shows where a later thought begins", message)
            if not field and text.startswith(OPENING, past_space(text, low, high)):
                start = low if gap.strip() else done
            paint.put(start, high, thought, message)
            last = thought
        else:
            last = SpanKind.ASSISTANT
        done = high


def _weigh(paint: _Paint, words: Sequence[Word], turns: Sequence[Turn], flags: Sequence[float]) -> None:
    """Say how much characters count: as much as their message.

    Text that the template wrote between two messages has the smaller of their weights, so that it is trained only if
    both messages are.
    """
    weights = paint.weights = np.ones(len(paint.codes))
    done, before = 0, -1
    for begin, end, code in words:
        if code == GENERATION:
            continue
        owner = code >> MESSAGE
        weights[done : max(begin, done)] = min(flags[max(before, 0) : owner + 1], default=True)
        weights[max(begin, done) : end] = flags[owner]
        done, before = max(done, end), owner
    weights[done:] = min(flags[max(before, 0) :], default=True)
    for turn in turns:
        weights[turn.begin : max(turn.end, turn.next_stop)] = flags[turn.message]
