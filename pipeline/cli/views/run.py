"""A run in the terminal: its plan as a tree, its ledger and packing as tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ....schemas.config.config import RunConfig
from ....schemas.ledger import Ledger, SourceLedger
from ....schemas.manifest import Manifest
from ....schemas.reasons import DECISIONS, OWN, REASONS
from ....schemas.units import count, duration, plural, size
from ...encode.prepared import Prepared
from ...report.draw.blocks import Grid
from ...report.draw.printing import print_blocks, say
from ...report.ledger_lines import Stress, ledger_columns, ledger_sections
from ...run.estimate import RunEstimate

_STYLES: dict[Stress, str] = {
    "": "",
    "head": "bold",
    "detail": "dim",
    "cut": "red",
    "trained": "bold green",
}


def pipeline_tree(
    config: RunConfig, prepared: Prepared, estimate: RunEstimate, out: str, cache: str, workers: int
) -> Tree:
    """The pipeline that would run, with counts, sizes and what is already cached."""
    tree = Tree(Text(f"packtrain → {out}", style="bold"))
    sources = tree.add("sources")
    for source in config.sources:
        files = [file for file in prepared.files if file.source == source.name]
        lines, held = sum(file.lines for file in files), sum(file.size for file in files)
        branch = sources.add(
            Text(f"{source.name}: format {prepared.formats[source.name].name}, {plural(lines, 'line')}, {size(held)}")
        )
        for file in files:
            branch.add(
                Text(
                    f"{file.origin or file.path} ({plural(file.lines, 'row')}, {size(file.size)}, {file.hash[:12]})",
                    style="dim",
                )
            )
    missing = estimate.blocks - estimate.cached
    encode = tree.add(
        Text(
            f"encode: {plural(estimate.blocks, 'block')}, {estimate.cached:,} cached, {missing:,} to do "
            f"({size(estimate.missing_bytes)})"
        )
    )
    encode.add(Text(f"tokenizer {config.tokenizer.path}"))
    encode.add(Text(f"engine {prepared.spec.engine} {prepared.spec.engine_version} ({plural(workers, 'worker')})"))
    encode.add(Text(f"cache {cache}", style="dim"))
    ends = "" if config.mask.train_end else ", ends of turns left out"
    untrained = ", untrained examples kept" if config.keep_untrained else ""
    thoughts = {"mask": ", thoughts left out", "last": ", thoughts of the last turn only"}.get(config.mask.thoughts, "")
    calls = ", tool calls left out" if config.mask.tool_calls == "mask" else ""
    tree.add(Text(f"mask: {config.mask.policy}{ends}{thoughts}{calls}{untrained}"))
    weights = {source.name: source.loss_weight for source in config.sources if source.loss_weight is not None}
    if weights or config.loss.divides:
        each = "".join(f", {name} {weight:g}" for name, weight in weights.items())
        tree.add(Text(f"loss: by {config.loss.normalize}{each}"))
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
    if config.decontaminate is not None and prepared.evaluation is not None:
        section = config.decontaminate
        rows = f"{plural(prepared.evaluation.counts.rows, 'row')} of "
        tree.add(
            Text(
                f"decontaminate: {section.action} examples that share {section.ngram} words with one of {rows}"
                + ", ".join(file.file for file in prepared.evaluation.files)
            )
        )
    pack = config.pack
    parallel = pack.parallel and ", ".join(f"{key} {value}" for key, value in pack.parallel)
    extra = "".join(
        f", {name} {value}"
        for name, value, default in (
            ("max_docs", pack.max_docs, None),
            ("align", pack.align, 1),
            ("parallel", parallel, None),
        )
        if value != default
    )
    rows = "not packed: preference pairs" if prepared.pairs else f"pack: {pack.strategy}"
    tree.add(Text(f"{rows}{', shuffled by seed ' + str(config.seed) if pack.shuffle else ''}{extra}"))
    if config.holdout.fraction:
        tree.add(Text(f"holdout: {config.holdout.fraction:.2%} by {config.holdout.by}"))
    tree.add(
        Text(
            f"write: {config.output.format}, about {count(estimate.tokens)} tokens, "
            f"{size(estimate.room_needed)} of disk space needed, {size(estimate.room_free)} free"
        )
    )
    return tree


def ledger_table(ledger: Ledger, *, sources: bool = True) -> Table:
    """Counts of rows, examples, tokens and labels: by source and in total, or only in total without `sources`."""
    table = Table(title="Ledger", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("")
    names, columns = ledger_columns(ledger, sources=sources)
    for name in names:
        table.add_column(name, justify="right")
    for section in ledger_sections(columns):
        table.add_section()
        for line in section:
            label = Text(f"  {line.label}" if line.inner else line.label, style=_STYLES[line.stress])
            table.add_row(label, *(f"{value:,}" for value in line.values))
    return table


def packing_grid(manifest: Manifest) -> Grid:
    """Rows, fill and bound of each split. Preference pairs are not packed: their tokens instead."""
    pairs, rows, padded = manifest.preference, [], manifest.alignment.pads
    for name, split in manifest.splits.items():
        bound = sum(window.bound for window in split.windows)
        pieces = sum(window.pieces for window in split.windows)
        each = max(split.rows, 1)
        slots = each * manifest.max_length
        how_full = [
            f"{bound:,}",
            f"{split.rows / bound - 1:.3%}" if bound else "–",
            f"{split.fill(manifest.max_length):.2%}",
            *([f"{split.padding / slots:.2%}"] if padded else []),
        ]
        rows.append(
            [
                name,
                f"{split.rows:,}",
                *([] if pairs else how_full),
                f"{split.tokens:,}",
                f"{split.trained_share:.1%}",
                f"{split.tokens / each:,.0f}" if pairs else f"{pieces / each:.1f}",
                f"{len(split.shards):,}",
            ]
        )
    if pairs:
        return Grid("Preference pairs", ("split", "pairs", "tokens", "of completions", "tokens a pair", "shards"), rows)
    padding = ["padding"] if padded else []
    head = ["split", "rows", "bound", "gap", "fill", *padding, "tokens", "trained", "documents a row", "shards"]
    return Grid("Packing", head, rows)


def print_summary(console: Console, manifest: Manifest, out: str, seconds: float, advice: Sequence[str] = ()) -> None:
    """Ledger, packing, advice and the result of a finished run.

    Args:
        advice: see `run.driver.Made`.
    """
    table = ledger_table(manifest.ledger)
    unbounded = console.options.update(max_width=1 << 20)
    if console.measure(table, options=unbounded).maximum > console.width:
        # Truncated numbers would be useless.
        table = ledger_table(manifest.ledger, sources=False)
        console.print(table)
        say(console, f"{plural(len(manifest.ledger.sources), 'source')}: the report shows each one", "dim")
    else:
        console.print(table)
    console.print()
    print_blocks(console, [packing_grid(manifest)])
    console.print()
    total: SourceLedger = manifest.ledger.total()
    rejected = sum(total.rows_rejected.values()) + sum(
        count for reason, count in total.examples_dropped.items() if reason not in DECISIONS
    )
    if rejected:
        what = plural(rejected, "row or example was", "rows or examples were")
        often, style = "", "yellow"
        if 2 * rejected > total.rows_read:
            reasons = total.rows_rejected | total.examples_dropped
            most = max((one for one in reasons if one not in DECISIONS), key=lambda one: reasons[one])
            often = f" of {plural(total.rows_read, 'row')}. Most often {most}: {REASONS.get(most, OWN)} All:"
            style = "bold red"
        say(console, f"{what} rejected{often or ';'} see {out}/rejects.jsonl", style)
    for line in advice:
        say(console, line, "yellow")
    if manifest.weighted:
        say(console, "it has loss_weights: a trainer that ignores them trains another objective", "yellow")
    if cut := total.examples_dropped.get("cut_empty", 0) + total.examples_dropped.get("cut_equal", 0):
        console.print(
            Text(
                f"of {plural(total.examples_made, 'pair')}, {plural(cut, 'was', 'were')} dropped because truncation "
                "left a completion empty, or both completions the same; raise truncate.max_length or "
                "truncate.max_completion_length, or set "
                "truncate.max_prompt_length",
                style="yellow",
            ),
            soft_wrap=True,
        )
    engine = manifest.plan["encode"]
    made_by = f"tokens by {engine['engine']} {engine['engine_version']}"
    say(console, f"{out} is finished: {manifest.hash[:16]}, in {duration(seconds)}, {made_by}")
