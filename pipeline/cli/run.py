"""`packtrain run`: the whole pipeline, then commands to look at the result."""

import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.errors import ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import duration
from .options import Config, Format, Input, Mask, MaxLength, Out, RowLength, Seed, Set, Tokenizer, Workers, load_run
from .output import print_lines, show_progress

if TYPE_CHECKING:
    from ..report.grid import Lines
    from ..run.run import RunEnd

_GARBAGE_THRESHOLD = 100_000
"""Number of new objects after which Python looks for garbage. By default it is 700, and imports alone make 300,000 that
stay.
"""


def run(
    config: Config = None,
    input: Input = None,
    format: Format = None,
    tokenizer: Tokenizer = None,
    out: Out = None,
    mask: Mask = None,
    max_length: MaxLength = None,
    row_length: RowLength = None,
    seed: Seed = None,
    workers: Workers = None,
    settings: Set = None,
    shard: str | None = None,
    demo: bool = False,
) -> None:
    """Prepare, render, tokenize, mask, truncate and pack; write shards, manifest and ledger.

    Args:
        shard (I/N): this is run I, from 0, of N runs that share the work.
        demo: run the embedded sample.
    """
    gc.set_threshold(_GARBAGE_THRESHOLD)
    # Nothing here multiplies matrices; the threads that numpy would start for it cost a twentieth of a second each time
    # that a process imports it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    began = time.perf_counter()
    cache = None  # the configuration's, or the default
    if demo:
        from .. import demo as home
        from ..store.open_store import cache_root, resolve_place

        if config is not None or input or tokenizer is not None or format is not None:
            raise ConfigError("--demo brings its own configuration, data, format and tokenizer; leave yours out")
        config = Path(home.__file__).parent / "demo.yaml"
        # As anywhere, --out wins over `--set out=`, and the last `--set` over those before it.
        if out is None:
            out = "runs/demo"
            for setting in settings or ():
                if setting.startswith("out="):
                    out = setting.removeprefix("out=")
        # The demo's configuration lies in the package, where nothing may be written.
        cache = cache_root(cache=None, out=resolve_place(out, Path.cwd()), base=Path.cwd())
    from ..execute.server import start_ahead

    # Starts the process that workers are forked from. It takes a third of a second, in which this one reads the
    # configuration.
    start_ahead()
    loaded, folder = load_run(
        config, settings, input, tokenizer, out, cache=cache, shard=shard, format=format, mask=mask,
        max_length=max_length, row_length=row_length, seed=seed, workers=workers,
        needs=("--input", "--tokenizer", "--out"),
        hint="--demo runs the embedded sample; packtrain schema prints all keys of a configuration",
    )  # fmt: skip
    from ..encode.preload import load_ahead

    # That process loads the tokenizer from now on, a second or more, while this one imports the rest and reads inputs.
    load_ahead(loaded, folder)
    from ..run.run import make_dataset
    from ..run.workers import open_workspace

    with show_progress() as observer:
        end = make_dataset(loaded, open_workspace(loaded, folder, observer))
    print_lines(_end_lines(end, demo, began))


def _end_lines(end: "RunEnd", demo: bool, began: float) -> "Lines":
    """About a screen: the ledger, then what matters most, in the order in which it matters, and what to do.

    Args:
        demo: whether to name the commands that look at the result of the demo.
        began: when the command began, by `time.perf_counter`.
    """
    from ...schemas.dataset.names import REJECTS
    from ..report.collect import packing_of
    from ..report.ledger_lines import ledger_grid
    from ..report.lengths.section import describe_advice, describe_sharing
    from ..report.report_files import HTML
    from ..report.sections import sections, summary_lines

    manifest = end.dataset.manifest
    report = end.report
    out = end.dataset.store
    # The dataset was there already: the run that made it has printed all of it, and the report has it.
    if not end.is_new:
        yield f"manifest {manifest.hash[:16]}"
        if out.exists(HTML):
            yield f"report: {out.where(HTML)}"
            yield f"  its tables: packtrain report {_from_here(out.url)}"
        return
    yield ledger_grid(manifest.ledger)
    yield ""
    summary = list(summary_lines(manifest.ledger, packing_of(manifest), out.where(REJECTS)))
    shown = sections(report) if report is not None else []
    warnings = ((warning, "yellow") for section in shown for warning in section.warnings)
    # A warning may repeat a sentence of the summary: each is printed once.
    yield from dict.fromkeys([*summary, *warnings])
    encode_plan = manifest.plan["encode"]
    made_by = f"tokens by {encode_plan['engine']} {encode_plan['engine_version']}"
    yield f"{out.url} is finished: {manifest.hash[:16]}, in {duration(time.perf_counter() - began)}, {made_by}"
    if report is not None:
        yield f"report: {out.where(HTML)}"
    # `choice`: the comparison of lengths, if the run made one.
    if report is not None and report.choice is not None:
        if advice := describe_advice(report.choice):
            yield f"  Advice: {escape_line(advice)}"
        if sharing := describe_sharing(report.choice):
            yield f"  {sharing}"
    if demo:
        yield from _next_commands(out.url, out.where(HTML) if report is not None else None)


def _from_here(path: str | Path) -> str:
    """A path relative to the current folder if it is below it; a URL as it is."""
    from ..store.open_store import is_url

    if is_url(str(path)):
        return str(path)
    relative = os.path.relpath(path)
    # A path that climbs out of the folder is longer, and harder to read.
    return str(path) if relative.startswith("..") else relative


def _next_commands(out: str, page: str | None) -> "Lines":
    """Commands to look at the result of the demo, which work from the current folder.

    Args:
        page: the report's page, if there is one.
    """
    dataset = _from_here(out)
    # The demo's training reads `runs/demo`, unless the command names another folder.
    data = "" if dataset == str(Path("runs/demo")) else f" --set data={dataset}"
    yield ""
    yield "Look at it:"
    if page is not None:
        yield f"  in a browser: open {_from_here(page)}"
    yield f"  packtrain report {dataset}      # the report as tables"
    yield f"  packtrain inspect {dataset} --row 0"
    yield f"  packtrain verify {dataset} --deep"
    yield f"  python -c \"import datasets; print(datasets.load_from_disk('{dataset}'))\""
    yield f"  packtrain train --demo{data}      # a tiny model; needs torch:"
    yield "    pip install 'packtrain[fast,train]'; without a GPU, first torch's CPU build, as pytorch.org says"
