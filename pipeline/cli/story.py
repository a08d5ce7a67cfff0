"""The story of one example in the terminal. Its text comes from data: control characters and markup are escaped."""

import json
import shlex
from typing import Any

from rich.console import Console
from rich.text import Text

from ...schemas.escape import escape, escape_line
from ...schemas.rows import RunKind
from ...schemas.units import plural
from ..dataset.decode import MASKED, TRAINED, has_colour
from ..explain.story import CutTokens, Standing, Story
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
    RunKind.MIXED: "bold red",
    RunKind.HISTORY_MIXED: "red",
    RunKind.UNPROVED: "red",
    RunKind.UNPROVED_COMPLETION: "bold red",
    RunKind.UNPROVED_PARTS: "bold red",
    RunKind.REJECTED: "red",
    None: "",
}
"""Kind of token → colour."""
_LINES = 4
"""Maximum number of lines of a long text."""
_HEAD, _TAIL = 8, 4
"""Tokens shown at the start and the end of a long stretch."""


class Teller:
    """Prints stories.

    Args:
        full: shorten nothing.
    """

    def __init__(self, console: Console, *, full: bool = False) -> None:
        self._console = console
        self._full = full
        self._colour = has_colour(console)

    def tell(self, story: Story) -> None:
        """Print one story, stage by stage."""
        self._source(story)
        self._text(story)
        self._tokens(story)
        self._outcome(story)
        for note in story.notes:
            self._line(f"note: {note}", "yellow")

    def _source(self, story: Story) -> None:
        address, origin = story.address, story.origin
        number = f" (document {story.doc_id:,})" if story.doc_id is not None else ""
        self._line(f"{address.id}{number}", "bold")
        self._line(_verdict(story), "bold")
        self._title(1, "where it comes from")
        self._line(f"source {address.source}, file {address.file}, line {address.line:,}")
        if origin.path and not origin.said.startswith(origin.path):
            self._line(f"{origin.path}: {origin.said}")
        else:
            self._line(origin.said, "" if origin.state == "same" else "yellow")
        if origin.item is not None:
            self._value(origin.value)

    def _text(self, story: Story) -> None:
        if not any(stretch.text for stretch in story.stretches):
            return
        self._title(2, "its text, decoded from its tokens")
        kinds = dict.fromkeys(stretch.kind for stretch in story.stretches if stretch.kind is not None)
        if not self._colour:
            self._line("legend: ⟦trained⟧ · not trained")
        elif kinds:
            legend = [Text(_word(kind), STYLES[kind]) for kind in kinds]
            self._print(Text(" · ").join([*legend, Text("underlined: trained", "underline")]))
        out = Text()
        for stretch in story.stretches:
            out.append(self._marked(stretch))
        self._print(out)

    def _marked(self, stretch: Stretch) -> Text:
        body, trained = escape(self._short(stretch.text)), stretch.fate is TokenFate.TRAINED
        if self._colour:
            return Text(body, f"{STYLES[stretch.kind]}{' underline' if trained else ''}".strip())
        return Text(f"⟦{body}⟧" if trained else body)

    def _tokens(self, story: Story) -> None:
        if not story.stretches:
            return
        self._title(3, f"its {plural(story.total, 'token')}, {story.trained:,} of them trained (mask {story.policy})")
        for stretch in story.stretches:
            self._line(_stretch(stretch), TRAINED if stretch.fate is TokenFate.TRAINED else MASKED)
            self._print(self._pieces(stretch))

    def _pieces(self, stretch: Stretch) -> Text:
        style = TRAINED if stretch.fate is TokenFate.TRAINED else ""
        shown = list(zip(stretch.ids, stretch.texts or [""] * len(stretch.ids), strict=True))
        left_out = 0 if self._full or len(shown) <= _HEAD + _TAIL + 1 else len(shown) - _HEAD - _TAIL
        out = Text("  ")
        for index, (id, text) in enumerate(shown):
            if _HEAD <= index < _HEAD + left_out:
                if index == _HEAD:
                    out.append(f"… {left_out:,} more …  ", "italic")
                continue
            out.append(f"{id} ", "cyan")
            out.append(f"'{escape_line(text)}'  ", style)
        return out

    def _outcome(self, story: Story) -> None:
        self._title(4, "what happened to it")
        if story.state != "packed":
            words = ": ".join(word for word in (story.state, story.reason, story.detail) if word)
            self._line(words, "bold")
            if story.row is not None:
                split, row = story.row
                self._line(f"row {row:,} of {split}:")
                self._line(f"  packtrain inspect {_quote(story)} --row {row} --split {split}", MASKED)
            if story.twin:
                self._line(
                    f"the earlier one is {story.twin}; packtrain inspect {_quote(story)} --id {shlex.quote(story.twin)}"
                )
            return
        copies = f", in {story.copies:,} copies" if story.copies > 1 else ""
        pieces = plural(len(story.standings), "piece")
        self._line(f"packed: {pieces}{copies}", "bold")
        for standing in story.standings:
            self._standing(story, standing)
        for cut in story.cuts:
            self._line(_cut(cut), "red")

    def _standing(self, story: Story, standing: Standing) -> None:
        piece = standing.piece
        weight = "" if piece.weights is None else f", loss weights add up to {sum(piece.weights):.4g}"
        self._line(
            f"row {standing.row:,} of {standing.split} (row {standing.shard_row:,} of {standing.shard}), positions "
            f"{standing.at:,} to {standing.at + len(piece.ids) - 1:,}: tokens {piece.start:,} to "
            f"{piece.start + len(piece.ids) - 1:,} of the example, {piece.trained:,} trained{weight}"
        )
        self._line(f"  packtrain inspect {_quote(story)} --row {standing.row} --split {standing.split}", MASKED)

    def _title(self, number: int, text: str) -> None:
        self._console.print()
        self._line(f"{number} {text}", "bold underline" if self._colour else "")

    def _value(self, value: Any) -> None:
        """A source row, line by line."""
        shown = value if self._full else self._shortened(value)
        text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False, indent=2, default=str)
        lines = text.split("\n")
        most = len(lines) if self._full else 10 * _LINES
        for line in lines[:most]:
            self._line(line, MASKED)
        if len(lines) > most:
            self._line(f"… {len(lines) - most:,} more lines (--full)", "italic")

    def _shortened(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._short(value)
        if isinstance(value, dict):
            return {str(key): self._shortened(item) for key, item in value.items()}
        if isinstance(value, list):
            if len(value) > _HEAD + _TAIL and not any(isinstance(one, dict) for one in value):
                return [*map(self._shortened, value[:_HEAD]), f"… {len(value) - _HEAD:,} more"]
            return [self._shortened(one) for one in value]
        return value

    def _short(self, text: str) -> str:
        """At most a few lines of a text. The middle is left out, with a count of what is missing."""
        most = _LINES * self._console.width
        if self._full or len(text) <= most:
            return text
        half = most // 2
        return f"{text[:half]} … {len(text) - 2 * half:,} characters more … {text[-half:]}"

    def _line(self, text: str, style: str = "") -> None:
        self._print(Text(escape(text), style))

    def _print(self, text: Text) -> None:
        # Only the terminal wraps lines, so that text can be copied as it is.
        self._console.print(text, soft_wrap=True, highlight=False)


def _verdict(story: Story) -> str:
    """What happened to the example, in one sentence with numbers."""
    of_pair = "" if story.row is None else f", in row {story.row[1]:,} of {story.row[0]}"
    if story.state != "packed" or not story.standings:
        state = ": ".join(word for word in (story.state, story.reason, story.detail) if word)
        none = (
            f"; none of its {plural(story.total, 'token')} is trained"
            if story.total and story.state != "packed" and story.row is None
            else ""
        )
        return f"{state}{of_pair}{none}"
    where = dict.fromkeys(f"row {one.row:,} of {one.split}" for one in story.standings)
    rows = next(iter(where)) if len(where) == 1 else f"{len(where):,} rows"
    pieces = "" if len(story.standings) == 1 else f", in {len(story.standings):,} pieces"
    copies = f", {story.copies:,} times" if story.copies > 1 else ""
    cut = (
        f"; {plural(lost, 'token is', 'tokens are')} cut off"
        if (lost := sum(one.end - one.begin for one in story.cuts))
        else ""
    )
    of = plural(story.total, "token is", "tokens are")
    mask = f" (mask {story.policy})" if story.policy else ""
    return f"packed in {rows}{pieces}{copies}: {story.trained:,} of {of} trained{mask}{cut}"


def _stretch(stretch: Stretch) -> str:
    last = stretch.begin + len(stretch.ids) - 1
    where = f"token {last:,}" if last == stretch.begin else f"tokens {stretch.begin:,} to {last:,}"
    kind = f" · {_word(stretch.kind)}" if stretch.kind is not None else ""
    turn = f" · message {stretch.turn + 1}" if stretch.turn >= 0 else ""
    often = ""
    if stretch.stands > 1:
        often = f", in {stretch.stands:,} pieces, trained in {stretch.trained:,}"
    return f"{where}{kind}{turn} · {stretch.fate.value}{often}"


def _cut(cut: CutTokens) -> str:
    where = f"token {cut.begin:,}" if cut.end == cut.begin + 1 else f"tokens {cut.begin:,} to {cut.end - 1:,}"
    return f"cut: {where} ({cut.end - cut.begin:,}), by {cut.reason}"


def _word(kind: RunKind) -> str:
    return kind.name.lower().replace("_", " ")


def _quote(story: Story) -> str:
    return shlex.quote(story.folder)
