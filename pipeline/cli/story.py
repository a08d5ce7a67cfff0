"""The story of one example in the terminal. Its text comes from data: control characters and markup are escaped."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from ...schemas.escape import escape, escape_line
from ...schemas.rows import RunKind
from ...schemas.units import plural
from ..dataset.decode import MASKED, TRAINED, has_colour
from ..explain.story import Story
from ..explain.tokens import Stretch, TokenFate

STYLES: dict[RunKind | None, str] = {
    RunKind.PROMPT: "dim",
    RunKind.USER: "blue",
    RunKind.SPECIAL: "yellow",
    RunKind.HISTORY: "cyan",
    RunKind.HISTORY_END: "bold cyan",
    RunKind.COMPLETION: "green",
    RunKind.TEXT: "green",
    RunKind.ASSISTANT: "bold green",
    RunKind.END: "bold magenta",
    RunKind.THOUGHT: "bold yellow",
    RunKind.HISTORY_THOUGHT: "yellow",
    RunKind.TOOL_CALL: "bold blue",
    RunKind.HISTORY_CALL: "blue",
    RunKind.STOP_IN_NEXT_HEADER: "bold magenta",
    RunKind.HISTORY_STOP_IN_NEXT_HEADER: "bold cyan",
    RunKind.UNPROVED: "red",
    RunKind.UNPROVED_COMPLETION: "bold red",
    RunKind.REJECTED: "red",
    None: "",
}
"""Kind of token → colour."""
_LINES = 4
"""Maximum number of lines of a long text."""
_HEAD, _TAIL = 8, 4
"""Tokens shown at the start and the end of a long stretch."""


def tell(console: Console, story: Story, *, full: bool = False) -> None:
    """Print a story, stage by stage.

    Args:
        full: shorten nothing.
    """
    most = (1 << 60) if full else _LINES * console.width
    for text in (
        *_origin(story, most, full),
        *_text(story, most, has_colour(console)),
        *_tokens(story, full),
        *_outcome(story),
        *(_line(f"note: {note}", "yellow") for note in story.notes),
    ):
        # Only the terminal wraps lines, so that text can be copied as it is.
        console.print(text, soft_wrap=True, highlight=False)


def _line(text: str, style: str = "") -> Text:
    return Text(escape(text), style)


def _title(number: int, text: str) -> Text:
    return _line(f"\n{number} {text}", "bold")


def _origin(story: Story, most: int, full: bool) -> Iterator[Text]:
    address, origin = story.address, story.origin
    number = f" (document {story.doc_id:,})" if story.doc_id is not None else ""
    yield _line(f"{address.id}{number}", "bold")
    yield _line(_verdict(story), "bold")
    yield _title(1, "where it comes from")
    yield _line(f"source {address.source}, file {address.file}, line {address.line:,}")
    path = f"{origin.path}: " if origin.path and not origin.said.startswith(origin.path) else ""
    yield _line(f"{path}{origin.said}", "" if origin.state == "same" else "yellow")
    if origin.item is None:
        return
    shown = origin.value if full else _shortened(origin.value, most)
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False, indent=2, default=str)
    lines = text.split("\n")
    kept = len(lines) if full else 10 * _LINES
    yield from (_line(line, MASKED) for line in lines[:kept])
    if len(lines) > kept:
        yield _line(f"… {len(lines) - kept:,} more lines (--full)", "italic")


def _text(story: Story, most: int, colour: bool) -> Iterator[Text]:
    if not any(stretch.text for stretch in story.stretches):
        return
    yield _title(2, "its text, decoded from its tokens")
    kinds = dict.fromkeys(stretch.kind for stretch in story.stretches if stretch.kind is not None)
    if not colour:
        yield _line("legend: ⟦trained⟧ · not trained")
    elif kinds:
        words = [*(_line(_word(kind), STYLES[kind]) for kind in kinds), _line("underlined: trained", "underline")]
        yield Text(" · ").join(words)
    out = Text()
    for stretch in story.stretches:
        body, trained = escape(_shortened(stretch.text, most)), stretch.fate is TokenFate.TRAINED
        if colour:
            out.append(body, f"{STYLES[stretch.kind]}{' underline' if trained else ''}".strip())
        else:
            out.append(f"⟦{body}⟧" if trained else body)
    yield out


def _tokens(story: Story, full: bool) -> Iterator[Text]:
    if story.stretches:
        yield _title(3, f"its {plural(story.total, 'token')}, {story.trained:,} of them trained (mask {story.policy})")
    for stretch in story.stretches:
        trained = stretch.fate is TokenFate.TRAINED
        yield _line(_stretch(stretch), TRAINED if trained else MASKED)
        each = list(zip(stretch.ids, stretch.texts or [""] * len(stretch.ids), strict=True))
        left_out = 0 if full or len(each) <= _HEAD + _TAIL + 1 else len(each) - _HEAD - _TAIL
        out = Text("  ")
        for index, (id, text) in enumerate(each):
            if not _HEAD <= index < _HEAD + left_out:
                out.append(f"{id} ", "cyan").append(f"'{escape_line(text)}'  ", TRAINED if trained else "")
            elif index == _HEAD:
                out.append(f"… {left_out:,} more …  ", "italic")
        yield out


def _stretch(stretch: Stretch) -> str:
    kind = f" · {_word(stretch.kind)}" if stretch.kind is not None else ""
    turn = f" · message {stretch.turn + 1}" if stretch.turn >= 0 else ""
    often = f", in {stretch.stands:,} pieces, trained in {stretch.trained:,}" if stretch.stands > 1 else ""
    return f"{_range(stretch.begin, stretch.begin + len(stretch.ids))}{kind}{turn} · {stretch.fate.value}{often}"


def _outcome(story: Story) -> Iterator[Text]:
    yield _title(4, "what happened to it")
    inspect = f"packtrain inspect {shlex.quote(story.folder)}"
    if story.state != "packed":
        yield _line(_state(story), "bold")
        if story.row is not None:
            split, row = story.row
            yield _line(f"row {row:,} of {split}:")
            yield _line(f"  {inspect} --row {row} --split {split}", MASKED)
        if story.twin:
            yield _line(f"the earlier one is {story.twin}; {inspect} --id {shlex.quote(story.twin)}")
        return
    copies = f", in {story.copies:,} copies" if story.copies > 1 else ""
    yield _line(f"packed: {plural(len(story.standings), 'piece')}{copies}", "bold")
    for one in story.standings:
        piece = one.piece
        weight = "" if piece.weights is None else f", loss weights add up to {sum(piece.weights):.4g}"
        yield _line(
            f"row {one.row:,} of {one.split} (row {one.shard_row:,} of {one.shard}), positions {one.at:,} to "
            f"{one.at + len(piece.ids) - 1:,}: {_range(piece.start, piece.start + len(piece.ids))} of the example, "
            f"{piece.trained:,} trained{weight}"
        )
        yield _line(f"  {inspect} --row {one.row} --split {one.split}", MASKED)
    for cut in story.cuts:
        yield _line(f"cut: {_range(cut.begin, cut.end)} ({cut.end - cut.begin:,}), by {cut.reason}", "red")


def _shortened(value: Any, most: int) -> Any:
    """Texts of at most so many characters, without their middle; of long lists the first items."""
    if isinstance(value, str):
        half = most // 2
        left_out = f" … {len(value) - 2 * half:,} characters more … "
        return value if len(value) <= most else value[:half] + left_out + value[-half:]
    if isinstance(value, dict):
        return {str(key): _shortened(item, most) for key, item in value.items()}
    if isinstance(value, list):
        if len(value) > _HEAD + _TAIL and not any(isinstance(one, dict) for one in value):
            return [*(_shortened(one, most) for one in value[:_HEAD]), f"… {len(value) - _HEAD:,} more"]
        return [_shortened(one, most) for one in value]
    return value


def _state(story: Story) -> str:
    return ": ".join(word for word in (story.state, story.reason, story.detail) if word)


def _verdict(story: Story) -> str:
    """What happened to the example, in one sentence with numbers."""
    if story.state != "packed" or not story.standings:
        none = f"; none of its {plural(story.total, 'token')} is trained"
        of_pair = f", in row {story.row[1]:,} of {story.row[0]}" if story.row is not None else ""
        return f"{_state(story)}{of_pair or (none if story.total and story.state != 'packed' else '')}"
    where = dict.fromkeys(f"row {one.row:,} of {one.split}" for one in story.standings)
    rows = next(iter(where)) if len(where) == 1 else f"{len(where):,} rows"
    pieces = "" if len(story.standings) == 1 else f", in {len(story.standings):,} pieces"
    copies = f", {story.copies:,} times" if story.copies > 1 else ""
    lost = sum(one.end - one.begin for one in story.cuts)
    cut = f"; {plural(lost, 'token is', 'tokens are')} cut off" if lost else ""
    of = plural(story.total, "token is", "tokens are")
    mask = f" (mask {story.policy})" if story.policy else ""
    return f"packed in {rows}{pieces}{copies}: {story.trained:,} of {of} trained{mask}{cut}"


def _range(begin: int, end: int) -> str:
    return f"token {begin:,}" if end == begin + 1 else f"tokens {begin:,} to {end - 1:,}"


def _word(kind: RunKind) -> str:
    return kind.name.lower().replace("_", " ")
