"""A run in the terminal: its plan as a tree, its ledger and packing as tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from ....schemas.config.config import RunConfig
from ....schemas.escape import escape_line
from ....schemas.ledger import SourceLedger
from ....schemas.manifest import Manifest
from ....schemas.reasons import OWN, REASONS
from ....schemas.units import count, duration, plural, size
from ...encode.prepared import Prepared
from ...report.collect import packing_of, rejected_of
from ...report.printing import print_grids, rich_table, say
from ...report.sections import ledger_grid, packing_grid
from ...run.estimate import RunEstimate


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


def print_summary(
    console: Console, manifest: Manifest, out: str, seconds: float, advice: Sequence[str], warning: str | None
) -> None:
    """The result of a finished run, about a screen: what matters most, packing, ledger and what to do.

    Args:
        advice: see `run.driver.Made`.
        warning: that of the report.
    """
    total: SourceLedger = manifest.ledger.total()
    urgent = [*_most_rejected(total, out), *advice, *([escape_line(warning)] if warning is not None else [])]
    if urgent:
        say(console, urgent[0], "bold yellow")
    else:
        kept = f"all {plural(sum(total.examples_packed.values()), 'example')}" if not total.examples_dropped else ""
        say(console, f"packed {kept or plural(sum(total.examples_packed.values()), 'example')}", "bold green")
    print_grids(console, [packing_grid(packing_of(manifest, {}))])
    console.print()
    grid = ledger_grid(manifest.ledger)
    unbounded = console.options.update(max_width=1 << 20)
    if console.measure(rich_table(grid), options=unbounded).maximum > console.width:
        grid = ledger_grid(manifest.ledger, most=0)  # truncated numbers would be useless
    print_grids(console, [grid])
    if len(manifest.ledger.sources) > 1 and len(grid.head) == 2:
        say(console, f"{plural(len(manifest.ledger.sources), 'source')}: the report shows each one", "dim")
    console.print()
    for line in urgent[1:]:
        say(console, line, "yellow")
    rejected = sum(rejected_of(total).values())
    if rejected and 2 * rejected <= total.rows_read:
        what = plural(rejected, "row or example was", "rows or examples were")
        say(console, f"{what} rejected; see {out}/rejects.jsonl", "yellow")
    if manifest.weighted:
        say(console, "it has loss_weights: a trainer that ignores them trains another objective", "yellow")
    if cut := total.examples_dropped.get("cut_empty", 0) + total.examples_dropped.get("cut_equal", 0):
        say(
            console,
            f"of {plural(total.examples_made, 'pair')}, {plural(cut, 'was', 'were')} dropped because truncation "
            "left a completion empty, or both completions the same; raise truncate.max_length or "
            "truncate.max_completion_length, or set truncate.max_prompt_length",
            "yellow",
        )
    engine = manifest.plan["encode"]
    made_by = f"tokens by {engine['engine']} {engine['engine_version']}"
    say(console, f"{out} is finished: {manifest.hash[:16]}, in {duration(seconds)}, {made_by}")


def _most_rejected(total: SourceLedger, out: str) -> list[str]:
    """A sentence if more than half of the rows were rejected: why, most often, and where all are listed."""
    reasons = rejected_of(total)
    rejected = sum(reasons.values())
    if 2 * rejected <= total.rows_read or not rejected:
        return []
    most = next(iter(reasons))
    what = plural(rejected, "row or example was", "rows or examples were")
    return [
        f"{what} rejected of {plural(total.rows_read, 'row')}. Most often {most}: {REASONS.get(most, OWN)} All: "
        f"{out}/rejects.jsonl"
    ]
