"""What a person sees in the terminal: progress while it runs, a tree before, tables after."""

import sys
import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ..schemas.config import RunConfig
from ..schemas.escape import escape
from ..schemas.ledger import Ledger, SourceLedger
from ..schemas.manifest import Manifest
from .pairs_view import pairs_table
from .prospect import Prospect
from .units import count, duration, plural, rate, size

DECISIONS = (
    "empty", "equal", "min_tokens", "max_tokens", "untrained", "overlong", "cut_untrained", "cut_empty", "cut_equal",
    "duplicate", "not_sampled",
)  # fmt: skip
"""Reasons that were asked for, or follow from lengths: their examples are whole, and do not stand in the rejects."""
QUIET_SECONDS = 1.0
"""Stages shorter than this leave no trace."""


class ConsoleObserver:
    """Progress bars in a terminal, plain lines elsewhere. As a context, it leaves the terminal as it was."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress: Progress | None = None
        self._task: int = 0
        self._stage = ""
        self._began = 0.0
        self._said = 0.0
        self._total = 0
        self._done = 0
        self._rows = 0
        self._tokens = 0

    def __enter__(self) -> "ConsoleObserver":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()

    def begin(self, stage: str, total: int, unit: str) -> None:
        """See `Observer`."""
        self._stop()
        self._stage, self._total, self._done, self._rows, self._tokens = stage, total, 0, 0, 0
        self._began = self._said = time.monotonic()
        if self._live():
            columns: list[ProgressColumn] = [TextColumn("{task.description:>7}"), BarColumn()]
            if total:
                columns += [TextColumn("{task.percentage:>3.0f} %"), _Rates(), TimeRemainingColumn()]
            self._progress = Progress(*columns, console=self.console, transient=True)
            self._task = self._progress.add_task(stage, total=total or None, rows=0, tokens=0)
            self._progress.start()

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        """See `Observer`."""
        self._done += done
        self._rows += rows
        self._tokens += tokens
        if self._progress is not None:
            self._progress.update(self._task, advance=done, rows=self._rows, tokens=self._tokens)  # type: ignore[arg-type]
        elif time.monotonic() - self._said >= 5 and self._total:
            self._said = time.monotonic()
            say(self.console, f"{self._stage}: {self._done / self._total:.0%}, {self._rates()}")

    def end(self) -> None:
        """See `Observer`."""
        self._stop()
        if self._stage and time.monotonic() - self._began >= QUIET_SECONDS:
            seconds = time.monotonic() - self._began
            rates = f", {self._rates()}" if self._total else ""
            say(self.console, f"{self._stage}: done in {duration(seconds)}{rates}")
        self._stage = ""

    def note(self, text: str) -> None:
        """See `Observer`."""
        say(self.console, text)

    def _live(self) -> bool:
        # FORCE_COLOR makes a pipe a terminal as far as rich goes; it asks for colours, not for bars in a log.
        return self.console.is_terminal and not self.console.is_dumb_terminal and self.console.file.isatty()

    def _stop(self) -> None:
        # A bar that is left running hides the cursor, and is drawn once more below an error's message.
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _rates(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        tokens = f", {rate(self._tokens / seconds, 'tokens')}" if self._tokens else ""
        return f"{rate(self._rows / seconds, 'rows')}{tokens}"


class _Rates(ProgressColumn):
    """Rows and tokens a second."""

    def render(self, task: Task) -> Text:
        """See rich."""
        seconds = task.elapsed or 0.0
        if seconds <= 0:
            return Text("")
        rows, tokens = task.fields["rows"] / seconds, task.fields["tokens"] / seconds
        return Text(f"{rate(rows, 'rows')}  {rate(tokens, 'tokens')}", style="cyan")


def pipeline_tree(config: RunConfig, prospect: Prospect, out: str, cache: str, workers: int) -> Tree:
    """The pipeline as it would run, with counts, sizes and what is cached."""
    tree = Tree(Text(f"packtrain → {out}", style="bold"))
    sources = tree.add("sources")
    for source in config.sources:
        files = [file for file in prospect.files if file.source == source.name]
        lines, held = sum(file.lines for file in files), sum(file.size for file in files)
        branch = sources.add(
            Text(f"{source.name}: format {prospect.formats[source.name]}, {lines:,} lines, {size(held)}")
        )
        for file in files:
            branch.add(
                Text(
                    f"{file.origin or file.path} ({file.lines:,} rows, {size(file.size)}, {file.hash[:12]})",
                    style="dim",
                )
            )
    missing = prospect.blocks - prospect.cached
    encode = tree.add(
        Text(
            f"encode: {prospect.blocks:,} blocks, {prospect.cached:,} cached, {missing:,} to do "
            f"({size(prospect.missing_bytes)})"
        )
    )
    encode.add(Text(f"tokenizer {config.tokenizer.path}"))
    encode.add(Text(f"engine {prospect.engine.name} {prospect.engine.version} ({workers} workers)"))
    encode.add(Text(f"cache {cache}", style="dim"))
    ends = "" if config.mask.train_end else ", ends of turns left out"
    untrained = ", untrained examples kept" if config.keep_untrained else ""
    tree.add(Text(f"mask: {config.mask.policy}{ends}{untrained}"))
    cut = config.truncate
    how = f"at {cut.split.at}, overlap {cut.split.overlap:,}" if cut.overlong == "split" else f"keep {cut.keep}"
    limits = "".join(
        f", {name} {value:,}"
        for name, value in (("prompts", cut.max_prompt_length), ("completions", cut.max_completion_length))
        if value is not None
    )
    tree.add(Text(f"truncate: max_length {cut.max_length:,}{limits}, overlong {cut.overlong}, {how}"))
    if config.duplicates == "drop":
        tree.add(Text("duplicates: dropped"))
    pack = config.pack
    extra = "".join(
        f", {name} {value}"
        for name, value, default in (("max_docs", pack.max_docs, None), ("align", pack.align, 1))
        if value != default
    )
    rows = "not packed: preference pairs" if prospect.pairs else f"pack: {pack.strategy}"
    tree.add(Text(f"{rows}{', shuffled by seed ' + str(config.seed) if pack.shuffle else ''}{extra}"))
    if config.holdout.fraction:
        tree.add(Text(f"holdout: {config.holdout.fraction:.2%} by {config.holdout.by}"))
    tree.add(
        Text(
            f"write: {config.output.format}, about {count(prospect.estimated_tokens)} tokens, "
            f"{size(prospect.room_needed)} of room needed, {size(prospect.room_free)} free"
        )
    )
    return tree


def ledger_table(ledger: Ledger, *, sources: bool = True) -> Table:
    """Every row, example, token and label, by source and in all; without `sources`, in all."""
    table = Table(title="Ledger", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("")
    names = list(ledger.sources) if sources else []
    columns = [ledger.sources[name] for name in names]
    if len(names) != 1:
        names.append("all")
        columns.append(ledger.total())
    for name in names:
        table.add_column(name, justify="right")

    def line(label: str, values: list[int], style: str = "") -> None:
        if any(values):
            table.add_row(Text(label, style=style), *(f"{value:,}" for value in values))

    def reasons(label: str, pick: str) -> None:
        keys = sorted({key for column in columns for key in getattr(column, pick)})
        for key in keys:
            line(f"  {label}: {key}", [getattr(column, pick).get(key, 0) for column in columns], "dim")

    def plain(label: str, pick: str, style: str = "") -> None:
        line(label, [getattr(column, pick) for column in columns], style)

    plain("rows read", "rows_read", "bold")
    plain("  used", "rows_used")
    reasons("rejected", "rows_rejected")
    reasons("filtered", "rows_filtered")
    plain("  blank", "rows_blank", "dim")
    table.add_section()
    plain("examples made", "examples_made", "bold")
    reasons("packed", "examples_packed")
    reasons("dropped", "examples_dropped")
    reasons("never made", "examples_skipped")
    plain("  further copies", "examples_repeated", "dim")
    plain("  of the packed, truncated", "examples_truncated", "dim")
    plain("  of the packed, split", "examples_split", "dim")
    plain("  of the packed, without a label", "examples_without_labels", "dim")
    table.add_section()
    plain("tokens encoded", "tokens_encoded", "bold")
    reasons("created", "tokens_created")
    for key in sorted({key for column in columns for key in column.tokens_truncated}):
        line(f"  truncated: {key}", [column.tokens_truncated.get(key, 0) for column in columns], "red")
    reasons("dropped", "tokens_dropped")
    plain("  packed", "tokens_packed")
    table.add_section()
    plain("labels trained", "labels_trained", "bold green")
    plain("  lost at heads of pieces", "labels_head", "dim")
    plain("  not asked for", "labels_not_asked", "dim")
    plain("turns trained", "turns_trained", "dim")
    plain("  without an end-of-turn token", "turns_without_end", "dim")
    plain("cuts through trained turns", "turns_cut", "dim")
    plain("tokens across a boundary", "straddles", "dim")
    reasons("left out by the template", "template_dropped")
    plain("prompts rendered otherwise alone", "prompts_rewritten", "dim")
    return table


def packing_table(manifest: Manifest) -> Table:
    """Rows, fill and the bound, by split."""
    table = Table(title="Packing", title_justify="left", show_edge=False, pad_edge=False)
    for name in ("split", "rows", "bound", "gap", "fill", "tokens", "trained", "documents a row", "shards"):
        table.add_column(name, justify="left" if name == "split" else "right")
    for name, split in manifest.splits.items():
        bound = sum(window.bound for window in split.windows)
        pieces = sum(window.pieces for window in split.windows)
        rows = max(split.rows, 1)
        table.add_row(
            name,
            f"{split.rows:,}",
            f"{bound:,}",
            f"{split.rows / bound - 1:.3%}" if bound else "–",
            f"{split.tokens / (rows * manifest.max_length):.2%}",
            f"{split.tokens:,}",
            f"{split.trained / max(split.tokens, 1):.1%}",
            f"{pieces / rows:.1f}",
            f"{len(split.shards):,}",
        )
    return table


def print_summary(console: Console, manifest: Manifest, out: str, seconds: float, advice: Sequence[str] = ()) -> None:
    """The closing words of a run.

    Args:
        advice: see `run.Driver.advice`.
    """
    table = ledger_table(manifest.ledger)
    unbounded = console.options.update(max_width=1 << 20)
    if console.measure(table, options=unbounded).maximum > console.width:
        # Numbers that are cut say nothing.
        table = ledger_table(manifest.ledger, sources=False)
        console.print(table)
        say(console, f"{plural(len(manifest.ledger.sources), 'source')}: the report has each by itself", "dim")
    else:
        console.print(table)
    console.print()
    console.print(pairs_table(manifest) if manifest.preference else packing_table(manifest))
    console.print()
    total: SourceLedger = manifest.ledger.total()
    rejected = sum(total.rows_rejected.values()) + sum(
        count for reason, count in total.examples_dropped.items() if reason not in DECISIONS
    )
    if rejected:
        what = plural(rejected, "row or example was", "rows or examples were")
        say(console, f"{what} rejected; see {out}/rejects.jsonl", "yellow")
    for line in advice:
        say(console, line, "yellow")
    if cut := total.examples_dropped.get("cut_empty", 0) + total.examples_dropped.get("cut_equal", 0):
        console.print(
            Text(
                f"truncation left a completion empty, or both the same, in {cut:,} of {total.examples_made:,} pairs, "
                "which were dropped; raise truncate.max_length or truncate.max_completion_length, or set "
                "truncate.max_prompt_length",
                style="yellow",
            ),
            soft_wrap=True,
        )
    engine = manifest.plan["encode"]
    made_by = f"tokens by {engine['engine']} {engine['engine_version']}"
    say(console, f"{out} is finished: {manifest.hash[:16]}, in {duration(seconds)}, {made_by}")


def say(console: Console, text: str = "", style: str = "") -> None:
    """Print text: no markup in it, no line broken, so that a path can be copied."""
    console.print(Text(escape(text), style=style), soft_wrap=True)


class EscapingConsole(Console):
    """A console that escapes all text as it writes it, whichever table or panel it stands in.

    Texts that are known to come from data are better escaped before: only then are they measured as they are shown.
    """

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            Segment(escape(text), style, control) if control is None else Segment(text, style, control)
            for text, style, control in buffer
        )


def make_console(stderr: bool = False) -> Console:
    """A console; without a terminal it is 120 columns wide."""
    stream = sys.stderr if stderr else sys.stdout
    return EscapingConsole(file=stream, width=None if stream.isatty() else 120)
