"""`packtrain run`: the whole pipeline, then commands to look at the result."""

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.errors import ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import duration, plural
from .options import Config, Input, Mask, Out, Set, Tokenizer, load_run
from .output import show

if TYPE_CHECKING:
    from ...schemas.config.config import RunConfig
    from ..observer import Observer
    from ..report.grid import Lines
    from ..run.run import Made
    from ..run.workers import Workspace

_GARBAGE = 100_000
"""Number of new objects after which Python looks for garbage. By default it is 700, and imports alone make 300,000 that
stay.
"""


def run(
    config: Config = None,
    settings: Set = None,
    out: Out = None,
    shard: str | None = None,
    demo: bool = False,
    input: Input = None,
    tokenizer: Tokenizer = None,
    mask: Mask = None,
) -> None:
    """Prepare, render, tokenize, mask, truncate and pack; write shards, manifest and ledger.

    Args:
        shard (I/N): this is run I, from 0, of N runs that share the work.
        demo: run the embedded sample.
    """
    gc.set_threshold(_GARBAGE)
    cache = None
    if demo:
        from .. import demo as home
        from ..store.open_store import cache_root, resolve_place

        if config is not None or input or tokenizer is not None:
            raise ConfigError("--demo brings its own configuration, data and tokenizer; leave yours out")
        given = [one.removeprefix("out=") for one in settings or () if one.startswith("out=")]
        config, out = Path(home.__file__).parent / "demo.yaml", out or (given or ["runs/demo"])[-1]
        cache = cache_root(None, resolve_place(out, Path.cwd()), Path.cwd())
    loaded, folder = load_run(
        config, settings, input, tokenizer, out, cache=cache, shard=shard, mask=mask,
        needs=("--input", "--tokenizer", "--out"),
        hint="--demo runs the embedded sample; packtrain schema prints all keys of a configuration",
    )  # fmt: skip
    show(partial(_run, loaded, folder), partial(_done_lines, demo))


@dataclass(frozen=True, slots=True)
class _Done:
    """A finished run."""

    work: "Workspace"
    made: "Made"
    seconds: float


def _run(config: "RunConfig", base: Path, observer: "Observer") -> _Done:
    from ..run.run import make_dataset
    from ..run.workers import open_workspace

    began = time.perf_counter()
    work = open_workspace(config, base, observer)
    made = make_dataset(config, work)
    return _Done(work, made, time.perf_counter() - began)


def _done_lines(demo: bool, done: _Done) -> "Lines":
    """About a screen: what matters most, packing, ledger and what to do."""
    from ..report.collect import packing_of
    from ..report.report_files import HTML
    from ..report.sections import ledger_grid, packing_grid

    manifest, report, out = done.made.manifest, done.made.report, done.work.out
    if not done.made.now:
        yield f"manifest {manifest.hash[:16]}"
        if out.exists(HTML):
            yield f"report: {out.where(HTML)}"
            yield f"  its tables: packtrain report {_near(out.url)}"
        return
    total = manifest.ledger.total()
    urgent = list(_urgent(done))
    if urgent:
        yield urgent[0], "bold yellow"
    else:
        kept = "all " if not total.examples_dropped else ""
        yield f"packed {kept}{plural(sum(total.examples_packed.values()), 'example')}", "bold green"
    yield packing_grid(packing_of(manifest))
    yield ""
    yield ledger_grid(manifest.ledger)
    yield ""
    yield from ((line, "yellow") for line in urgent[1:])
    engine = manifest.plan["encode"]
    made_by = f"tokens by {engine['engine']} {engine['engine_version']}"
    yield f"{out.url} is finished: {manifest.hash[:16]}, in {duration(done.seconds)}, {made_by}"
    if report is not None:
        yield f"report: {report.place}"
        if report.advice:
            yield f"  {escape_line(report.advice)}"
    if demo:
        yield from _next(out.url, report.place if report is not None else None)


def _urgent(done: _Done) -> Iterator[str]:
    """What the user may want to change, the most urgent first."""
    from ..report.collect import rejected_of
    from ..run.advice import on_rejects

    manifest, report = done.made.manifest, done.made.report
    total = manifest.ledger.total()
    rejects, most = on_rejects(total, f"{done.work.out.url}/rejects.jsonl"), rejected_of(total)
    first = 2 * sum(most.values()) > total.rows_read
    if rejects is not None and first:
        yield rejects
    if report is not None and report.warning:
        yield escape_line(report.warning)
    if rejects is not None and not first:
        yield rejects
    if manifest.weighted:
        yield "it has loss_weights: a trainer that ignores them trains another objective"
    if cut := total.examples_dropped.get("cut_empty", 0) + total.examples_dropped.get("cut_equal", 0):
        yield (
            f"of {plural(total.examples_made, 'pair')}, {plural(cut, 'was', 'were')} dropped because truncation "
            "left a completion empty, or both completions the same; raise truncate.max_length, or "
            "set truncate.keep=end"
        )


def _near(path: str | Path) -> str:
    """A path relative to the current folder if it is below it; a URL as it is."""
    from ..store.open_store import is_url

    relative = "" if is_url(str(path)) else os.path.relpath(path)
    return relative if relative and not relative.startswith("..") else str(path)


def _next(out: str, page: str | None) -> "Lines":
    """Commands to look at the result of the demo, which work from the current folder.

    Args:
        page: the report's page, if there is one.
    """
    here = _near(out)
    data = "" if here == str(Path("runs/demo")) else f" --set data={here}"
    yield ""
    yield "Look at it:"
    if page is not None:
        yield f"  in a browser: open {_near(page)}"
    yield f"  packtrain report {here}      # the report as tables"
    yield f"  packtrain inspect {here} --row 0"
    yield f"  packtrain verify {here} --deep"
    yield f"  python -c \"import datasets; print(datasets.load_from_disk('{here}'))\""
    yield f"  packtrain train --demo{data}      # a tiny model; needs torch:"
    yield "    pip install 'packtrain[fast,train]'; without a GPU, first torch's CPU build, as pytorch.org says"
