"""What to know of a dataset before and after it is packed: `plan`, `report`, `diff`, `inspect`, `contamination`."""

import shlex
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import plural
from .options import (
    Config,
    Folder,
    Format,
    Input,
    Json,
    Lengths,
    Mask,
    MaxLength,
    Out,
    RowLength,
    Seed,
    Set,
    Tokenizer,
    Workers,
    load_run,
)
from .output import print_json, print_lines, show_progress

if TYPE_CHECKING:
    from ...schemas.report.evaluation_hits import Contamination
    from ...schemas.report.report import Report
    from ...schemas.report.shown_rows import ShownRow
    from ..explain import Story
    from ..report.grid import Lines

_MAX_LISTED_PIECES = 20
"""Pieces of an example that are listed, each with its row."""


def plan(
    config: Config = None,
    input: Input = None,
    format: Format = None,
    tokenizer: Tokenizer = None,
    out: Out = None,
    mask: Mask = None,
    max_length: MaxLength = None,
    row_length: RowLength = None,
    lengths: Lengths = None,
    rows: Annotated[int | None, typer.Option(min=1)] = None,
    seed: Seed = None,
    workers: Workers = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Report what a run would do, and which length would fit the data, before anything is packed.

    Encodes into the cache, where the run finds the result, and stops. Writes OUT-plan.html and OUT-plan.json; with
    --json, it prints the numbers and writes no file.

    Args:
        rows: encode about N rows only, spread over all inputs.
    """
    from ..report.report_files import write_report
    from ..run.plan import plan as look_ahead
    from ..store.local import LocalStore
    from ..store.open_store import is_url, resolve_place

    # Looked at first: a mistake in an option is reported before any file is read.
    compared = _lengths_to_compare(lengths)
    loaded, folder = load_run(
        config, settings, input, tokenizer, out, format=format, mask=mask, max_length=max_length,
        row_length=row_length, seed=seed, workers=workers, needs=("--input", "--tokenizer"),
    )  # fmt: skip
    with show_progress(as_json=as_json) as observer:
        planned = look_ahead(loaded, compared, rows=rows, observer=observer, base=folder)
    if as_json:
        print_json(planned)
        return
    # Beside OUT, not in it: a plan must not make the folder of the run. Of a URL, in the working directory.
    place = resolve_place(loaded.out, folder).rstrip("/")
    beside = Path.cwd() if is_url(place) else Path(place).parent
    name = f"{place.rpartition('/')[2] or 'packtrain'}-plan"  # packed-plan for runs/packed
    page, numbers = write_report(planned, LocalStore(beside), name)
    print_lines(_report_lines(planned, page, numbers))


def report(folder: Folder, as_json: Json = False) -> None:
    """Report what happened to the data, what is trained, how good the packing is, and which length would fit.

    Writes DIR/report.html and DIR/report.json; with --json, it prints the numbers and writes no file.
    """
    from ..report.report_files import HTML, JSON
    from ..report.report_files import report as make_report
    from ..store.open_store import open_store, resolve_place

    dataset_report = make_report(folder, write=not as_json)
    if as_json:
        print_json(dataset_report)
        return
    store = open_store(resolve_place(folder, Path.cwd()))
    print_lines(_report_lines(dataset_report, store.where(HTML), store.where(JSON)))


def _lengths_to_compare(lengths: str | None) -> tuple[int, ...]:
    """The lengths to compare, ascending.

    Raises:
        ConfigError: a length is no number, or out of range.
    """
    from ...stages.forecast.estimate import CANDIDATES
    from ..report.lengths.compare import LEAST, MOST

    if lengths is None:
        return CANDIDATES  # those of any report
    # LEAST and MOST are the limits of `truncate.max_length`.
    try:
        compared = tuple(sorted({int(number) for number in lengths.split(",")}))
    except ValueError:
        raise ConfigError(f"--lengths {lengths[:80]}: give whole numbers, such as 1024,2048,4096") from None
    for length in compared:
        if not LEAST <= length <= MOST:
            raise ConfigError(f"--lengths: {length:,} is out of range; give lengths from {LEAST} to {MOST:,}")
    return compared


def _report_lines(shown_report: "Report", page: str, numbers: str) -> "Lines":
    """A report's sentences and tables.

    Args:
        page: where its HTML was written.
        numbers: where its JSON was written.
    """
    from ..report.sections import report_lines

    yield from report_lines(shown_report)
    yield ""
    yield f"page: {page}"
    yield f"numbers: {numbers}"


def diff(
    a: str,
    b: str,
    everything: Annotated[bool, typer.Option("--all")] = False,
    as_json: Json = False,
) -> None:
    """Compare two datasets: settings, inputs, ledgers, rows and examples.

    Args:
        a (A): a finished dataset, or its URL.
        b (B): another one.
        everything: show all changes instead of about a screen.
    """
    from ..report.diff import diff as compare
    from ..report.diff import difference_lines

    with show_progress(as_json=as_json) as observer:
        difference = compare(a, b, observer=observer)
    if as_json:
        print_json(difference)
    else:
        print_lines(difference_lines(everything, difference))


def inspect(
    folder: Folder,
    row: int | None = None,
    split: str | None = None,
    example: Annotated[str | None, typer.Option("--id")] = None,
    tokenizer: Path | None = None,
) -> None:
    """Show a packed row, or what became of one example: its places in rows, or why it has none.

    Args:
        row: which packed row, from 0.
        split: which split; by default train.
        example (ID): say what became of one example, by its id or its doc id.
        tokenizer: with --row: the tokenizer's folder; by default the run's.
    """
    if example is not None:
        if row is not None or split is not None or tokenizer is not None:
            raise ConfigError("give one of --row (with --split and --tokenizer) and --id")
        from ..explain import explain

        print_lines(_story_lines(folder, explain(folder, example)))
        return
    from ..report.shown import inspect as inspect_row

    print_lines(_row_lines(inspect_row(folder, row or 0, split or "train", tokenizer=tokenizer)))


def _row_lines(row: "ShownRow") -> "Lines":
    """A row: its summary, a legend of the marks, and each document under a line with its counts. A document is a list
    of pieces, which are printed side by side as one text, with the trained ones marked.
    """
    from ...schemas.report.shown_rows import ShownPiece

    yield row.summary()
    # A legend, marked as the texts below are.
    yield [ShownPiece("marks: not trained, ", weight=0, tokens=0), ShownPiece("trained", weight=1, tokens=0)]
    for document in row.documents:
        yield ""
        origin = f", {document.origin}" if document.origin else ""
        counts = f"{plural(document.tokens, 'token')}{origin}, {document.trained:,} trained"
        side = f"{document.side} of " if document.side else ""
        yield f"{side}{document.id}: {counts}", "bold"
        yield document.pieces


def _story_lines(folder: str, story: "Story") -> "Lines":
    """What became of an example, and each piece of it, with the commands that show the rows.

    Args:
        folder: the dataset, as given.
    """
    yield story.id + (f" (document {story.doc_id:,})" if story.doc_id is not None else "")
    copies = f" in {story.copies:,} copies" if story.copies > 1 else ""
    # A rejected row was never tokenized.
    size = f"{plural(story.tokens, 'token')}{copies}" if story.tokens else ""
    # Such as `packed: 120 tokens in 2 copies`, or `dropped: 120 tokens: max_tokens: …`.
    yield ": ".join(filter(None, (story.state, size, story.reason, story.detail)))
    if story.remedy:
        yield story.remedy
    if story.excerpt:
        yield f"the row: {story.excerpt}"
    if story.twin:
        yield f"the earlier one is {story.twin}"
    listed = story.standings[:_MAX_LISTED_PIECES]
    # Pieces of one row, such as both sides of a preference pair, follow each other. One command shows all of them.
    for (split, row), standings in groupby(listed, key=lambda standing: (standing.split, standing.row)):
        for standing in standings:
            side = f"the {standing.side} side, " if standing.side else ""
            yield (
                f"row {row:,} of {split}: {side}from token {standing.start:,} of the example on, "
                f"{standing.trained:,} trained"
            )
        yield f"  packtrain inspect {shlex.quote(folder)} --row {row} --split {split}"
    # An example that is repeated or split may have hundreds of pieces.
    if len(story.standings) > _MAX_LISTED_PIECES:
        yield f"and {plural(len(story.standings) - _MAX_LISTED_PIECES, 'more piece')}"
    # What has cut the example, such as truncate.max_length → its tokens that are in no row.
    for limit, tokens in story.cut.items():
        yield f"cut: {plural(tokens, 'token')} by {limit}"


def contamination(
    config: Config = None,
    input: Input = None,
    format: Format = None,
    against: list[str] | None = None,
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    workers: Workers = None,
    settings: Set = None,
) -> None:
    """Find training examples that share text with evaluation rows. No tokenizer is needed.

    With a configuration, what is found stays in its cache: a run with `contamination` finds it there.

    Args:
        against (PATH): evaluation files, as for --input; may be repeated; by default the configuration's
            contamination.against. --set contamination.ngram= says how many words must be shared in a row: 13.
        out (FILE.jsonl): write all hits to this file.
    """
    from ..run.find_contamination import contamination as find
    from ..store.open_store import cache_root, is_url, resolve_place

    files = []
    for path in against or ():
        # Made absolute, because relative paths would start in the folder of the configuration, and those of a command
        # line start in the working directory.
        files.append(path if is_url(path) else str(Path(path).absolute()))
    loaded, base = load_run(config, settings, input, format=format, against=files or None, workers=workers)
    # `find` takes a mapping, and uses a temporary cache if the mapping has no key `cache`. Without a configuration this
    # is right: no run would look for the hits. With one, the hits are kept in the cache of its run.
    data = loaded.model_dump(mode="json", exclude_unset=True)
    if config is not None:
        data["cache"] = cache_root(loaded.cache, resolve_place(loaded.out, base), base)
    with show_progress() as observer:
        result = find(data, hits=out, observer=observer, base=base)
    print_lines(_contamination_lines(result, out))


def _contamination_lines(result: "Contamination", out: Path | None) -> "Lines":
    """How many examples share text with evaluation rows, with tables of which.

    Args:
        out: the file with all hits; None if none was asked for.
    """
    from ..report.contamination_summary import contamination_section

    section = contamination_section(result)
    yield section.sentence
    yield from section.tables
    if out is not None:
        yield f"all hits: {out}"
    elif result.examples:
        yield "--out hits.jsonl writes all hits", "dim"
