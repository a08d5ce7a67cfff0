"""The story of one example in the terminal. Its text comes from data: control characters and markup are escaped."""

import json
import shlex
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from ...schemas.escape import escape, escape_line
from ...schemas.rows import MIXED_KINDS, Example, RunKind
from ...schemas.units import plural
from ...stages.template.train_flags import loss_weight
from ..dataset.decode import MASKED, TRAINED, has_colour
from ..explain.fate import CutTokens
from ..explain.packed_rows import Standing
from ..explain.story import Span, Story, trained_in
from ..explain.tokens import Token, TokenFate

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
        self._example(story)
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
            self._line(origin.said, "" if origin.state.value == "same" else "yellow")
        if origin.item is not None:
            self._value(origin.value)

    def _example(self, story: Story) -> None:
        self._title(2, "the example that prep made of it")
        example = story.example
        if example is None:
            self._line("none" if story.origin.item is not None else "its row is not available", MASKED)
            return
        for name, side in _sides(example):
            if isinstance(side, str):
                self._line(f"{name}: {self._short(side)}")
                continue
            for number, message in side:
                weight = loss_weight(message)
                flag = "" if weight == 1 else f", weight {weight:g}" if weight else ", train: false"
                self._line(f"{name}, message {number}, {message.get('role')}{flag}", "bold")
                content = message.get("content")
                self._line(self._short(content if isinstance(content, str) else _json(content)))
                for key, value in message.items():
                    if key not in ("role", "content", "train", "weight"):
                        self._line(f"{key}: {self._short(_json(value))}")
        if example.weight != 1:
            self._line(f"weight of the row: {example.weight:g}")
        if example.ids is not None:
            trained = len(example.ids) if example.trained is None else sum(example.trained)
            self._line(f"{plural(len(example.ids), 'token')} from the source, {trained:,} of them trained")
        if example.tools:
            self._line(f"tools: {', '.join(map(_tool, example.tools))}")

    def _text(self, story: Story) -> None:
        text = story.text
        if text is None:
            return
        self._title(3, "its text, as rendered" if text.rendered else "its text, decoded from its tokens")
        for what, agrees in text.checks:
            if not agrees:
                self._line(f"rendered and tokenized again, it DIFFERS from {what}", "bold red")
        if text.checks and all(agrees for _, agrees in text.checks):
            agreed = ", ".join(what for what, _ in text.checks)
            self._line(f"rendered by jinja2 and tokenized by tokenizers again, it agrees with {agreed}")
        if text.unproved:
            mixed = any(span.kind in MIXED_KINDS for span in text.spans)
            what = "thoughts or tool calls of a turn" if mixed else "the assistant's turns"
            self._line(f"{what} could not be located: {text.unproved}", "red")
        kinds = dict.fromkeys(span.kind for span in text.spans if span.kind is not None)
        if not self._colour:
            self._line("legend: ⟦trained⟧ · not trained")
        elif kinds:
            legend = [Text(_word(kind), STYLES[kind]) for kind in kinds]
            self._print(Text(" · ").join([*legend, Text("underlined: trained", "underline")]))
        out = Text()
        for span in text.spans:
            out.append(self._marked(span))
        if text.spans:
            self._print(out)

    def _marked(self, span: Span) -> Text:
        body = escape(self._short(span.text))
        if self._colour:
            return Text(body, f"{STYLES[span.kind]}{' underline' if span.trained else ''}".strip())
        return Text(f"⟦{body}⟧" if span.trained else body)

    def _tokens(self, story: Story) -> None:
        if not story.tokens:
            return
        trained = sum(token.fate is TokenFate.TRAINED for token in story.tokens)
        self._title(4, f"its {plural(story.total, 'token')}, {trained:,} of them trained (mask {story.policy})")

        def key(token: Token) -> tuple[Any, ...]:
            return token.kind, token.turn, token.fate, token.trained, token.stands

        for _, group in groupby(story.tokens, key):
            stretch = list(group)
            self._line(_stretch(stretch), TRAINED if stretch[0].fate is TokenFate.TRAINED else MASKED)
            self._print(self._pieces(stretch))

    def _pieces(self, stretch: list[Token]) -> Text:
        style = TRAINED if stretch[0].fate is TokenFate.TRAINED else ""
        shown: Iterable[Token | None] = stretch
        if not self._full and len(stretch) > _HEAD + _TAIL + 1:
            shown = [*stretch[:_HEAD], None, *stretch[-_TAIL:]]
        out = Text("  ")
        for token in shown:
            if token is None:
                out.append(f"… {len(stretch) - _HEAD - _TAIL:,} more …  ", "italic")
                continue
            out.append(f"{token.id} ", "cyan")
            out.append(f"'{escape_line(token.text)}'  ", style)
        return out

    def _outcome(self, story: Story) -> None:
        self._title(5, "what happened to it")
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
        end = standing.at + len(standing.ids)
        last = standing.start + len(standing.ids) - 1
        again = f", the first {standing.repeated:,} of them repeated (overlap)" if standing.repeated else ""
        weight = "" if standing.weights is None else f", loss weights add up to {sum(standing.weights):.4g}"
        self._line(
            f"row {standing.row:,} of {standing.split} (row {standing.shard_row:,} of {standing.shard}), positions "
            f"{standing.at:,} to {end - 1:,}: tokens {standing.start:,} to {last:,} of the example{again}, "
            f"{trained_in(standing):,} trained{weight}"
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
            if story.total and story.state != "packed"
            else ""
        )
        return f"{state}{of_pair}{none}"
    trained = sum(token.fate is TokenFate.TRAINED for token in story.tokens)
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
    return f"packed in {rows}{pieces}{copies}: {trained:,} of {of} trained{mask}{cut}"


def _sides(example: Example) -> Iterator[tuple[str, Any]]:
    """(name, text or messages with their numbers, from 1) of each part of an example."""
    number = 1
    for name, side in (
        ("prompt", example.prompt),
        ("completion" if example.rejected is None else "chosen", example.completion),
        ("rejected", example.rejected),
        ("text", example.text),
    ):
        if isinstance(side, list):
            first = number
            yield name, [(first + index, message) for index, message in enumerate(side)]
            number += len(side) if name == "prompt" else 0
            number += len(side) if name == "completion" else 0
        elif side is not None:
            yield name, side


def _tool(tool: Any) -> str:
    """The name of a tool."""
    inner = tool.get("function", tool) if isinstance(tool, dict) else tool
    name = inner.get("name") if isinstance(inner, dict) else None
    return str(name) if name else _json(tool)[:40]


def _stretch(stretch: list[Token]) -> str:
    first, last = stretch[0], stretch[-1]
    where = f"token {first.index:,}" if first is last else f"tokens {first.index:,} to {last.index:,}"
    kind = f" · {_word(first.kind)}" if first.kind is not None else ""
    turn = f" · message {first.turn + 1}" if first.turn >= 0 else ""
    often = ""
    if first.stands > 1:
        often = f", in {first.stands:,} pieces, trained in {first.trained:,}"
    return f"{where}{kind}{turn} · {first.fate.value}{often}"


def _cut(cut: CutTokens) -> str:
    where = f"token {cut.begin:,}" if cut.end == cut.begin + 1 else f"tokens {cut.begin:,} to {cut.end - 1:,}"
    return f"cut: {where} ({cut.end - cut.begin:,}), by {cut.reason}"


def _word(kind: RunKind) -> str:
    return kind.name.lower().replace("_", " ")


def _quote(story: Story) -> str:
    return shlex.quote(story.folder)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
