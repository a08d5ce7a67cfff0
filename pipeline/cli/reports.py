"""What to know of a dataset before and after it is packed: `plan`, `report`, `diff` and `contamination`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from ...schemas.errors import ConfigError
from .options import (
    Config,
    Folder,
    Input,
    Json,
    Lengths,
    Mask,
    Out,
    Output,
    Set,
    Tokenizer,
    load_run,
    whole_numbers,
)  # fmt: skip
from .output import show

if TYPE_CHECKING:
    from ...schemas.report import Overlap, Report
    from ..observer import Observer
    from ..report.grid import Lines

    Written = tuple[Report, tuple[str, str] | None]
    """A report, and where its page and its numbers are, if they were written."""


def plan(
    config: Config = None,
    settings: Set = None,
    rows: Annotated[int | None, typer.Option(min=1)] = None,
    output: Output = None,
    lengths: Lengths = None,
    out: Out = None,
    input: Input = None,
    tokenizer: Tokenizer = None,
    mask: Mask = None,
    as_json: Json = False,
) -> None:
    """Report what a run would do, and which length would fit the data, before anything is packed.

    Encodes into the cache, where the run finds the result, and stops; --rows encodes a sample only and keeps nothing.
    Writes OUT-plan.html and OUT-plan.json, or --output. With --json, it prints the numbers and writes files only with
    --output.

    Args:
        rows: sample about N rows, spread evenly over all inputs, for an answer in seconds.
    """
    from ..report.report_files import write_beside
    from ..run.plan import plan as look_ahead
    from ..store.open_store import is_url, resolve_place

    _check_page(output)
    compared = _compared(lengths)
    loaded, folder = load_run(config, settings, input, tokenizer, out, mask=mask, needs=("--input", "--tokenizer"))

    def make(observer: "Observer") -> "Written":
        report = look_ahead(loaded, compared, rows=rows, observer=observer, base=folder)
        place = resolve_place(loaded.out, folder)
        name = f"{place.rstrip('/').rpartition('/')[2] or 'packtrain'}-plan.html"
        beside = output or (Path.cwd() if is_url(place) else Path(place).parent) / name
        return report, write_beside(report, beside) if output is not None or not as_json else None

    show(as_json, make, _report_lines, lambda made: made[0])


def report(folder: Folder, output: Output = None, lengths: Lengths = None, as_json: Json = False) -> None:
    """Report what happened to the data, what is trained, how good the packing is, and which length would fit.

    Writes DIR/report.html and DIR/report.json, or --output. With --json, it prints the numbers and writes files only
    with --output.
    """
    from ..dataset.open_dataset import open_dataset
    from ..report.collect import report_of
    from ..report.report_files import write_beside, write_report

    _check_page(output)
    compared = _compared(lengths)

    def make(observer: "Observer") -> "Written":
        dataset = open_dataset(folder)
        made = report_of(dataset, compared)
        if output is not None:
            return made, write_beside(made, output)
        return made, None if as_json else write_report(made, dataset.store)

    show(as_json, make, _report_lines, lambda made: made[0])


def _check_page(output: Path | None) -> None:
    """Refuse a bad page name before anything is read. Missing folders are created later.

    Raises:
        ConfigError: the name does not end in .html, is a folder, or has a file as its parent.
    """
    if output is None:
        return
    if output.is_dir():
        raise ConfigError(f"--output: {output} is a folder; name a file in it, such as {output / 'page.html'}")
    if output.suffix != ".html":
        raise ConfigError(f"--output: {output} must end in .html, such as {output.stem}.html")
    there = next(path for path in output.absolute().parents if path.exists())
    if not there.is_dir():
        raise ConfigError(f"--output: {there} is a file, not a folder; choose another place than {output}")


def _compared(lengths: str | None) -> tuple[int, ...]:
    """The lengths to compare.

    Raises:
        ConfigError: a length is invalid.
    """
    from ...stages.forecast.sweep import CANDIDATES
    from ..report.lengths import check_length

    found = whole_numbers("--lengths", lengths, "1024,2048,4096") or CANDIDATES
    for length in found:
        check_length(length)
    return found


def _report_lines(made: "Written") -> "Lines":
    from ..report.sections import report_lines

    yield from report_lines(made[0])
    yield ""
    yield from (f"{what}: {place}" for what, place in zip(("page", "numbers"), made[1] or (), strict=False))


def diff(
    a: str,
    b: str,
    everything: Annotated[bool, typer.Option("--all")] = False,
    quick: bool = False,
    exit_code: bool = False,
    as_json: Json = False,
) -> None:
    """Compare two datasets: settings, inputs, ledgers, rows, lengths and examples.

    Args:
        a (A): a finished dataset, or its URL.
        b (B): another one.
        everything: show all changes instead of about a screen.
        quick: compare examples by id and length, without any rows.
        exit_code: exit with 1 unless the datasets are identical byte for byte.
    """
    from ..report.diff import compare, difference_lines

    found = show(as_json, partial(compare, a, b, quick), partial(difference_lines, everything))
    if exit_code and not found.identical:
        raise typer.Exit(1)


def contamination(
    config: Config = None,
    against: list[str] | None = None,
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    input: Input = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Find training examples that share text with evaluation rows. No tokenizer is needed.

    With a configuration, what is found stays in its cache: a run with `decontaminate` finds it there.

    Args:
        against (PATH): evaluation files, as for --input; may be repeated; by default the configuration's
            decontaminate.against. --set decontaminate.ngram= says how many words must be shared in a row: 13.
        out (FILE.jsonl): write all hits to this file.
    """
    from ..run.contaminated import find_contamination

    files = [str(Path(one).absolute()) if "://" not in one else one for one in against or ()]
    with TemporaryDirectory(prefix="packtrain-contamination-") as temporary:
        loaded, base = load_run(config, settings, input, cache=temporary, against=files or None)
        if loaded.decontaminate is None:
            raise ConfigError("--against is needed: the evaluation file to compare with, such as test.jsonl")
        named = "--against" if against else "decontaminate.against"
        found: Callable[[Observer], Overlap] = partial(find_contamination, loaded, base, hits=out, named=named)
        show(as_json, found, partial(_contamination_lines, out))


def _contamination_lines(out: Path | None, found: "Overlap") -> "Lines":
    from ..report.sections import overlap_section

    shown = overlap_section(found)
    yield shown.sentence
    yield from shown.tables
    if out is not None:
        yield f"all hits: {out}"
    elif found.examples:
        yield "--out hits.jsonl writes all hits", "dim"
