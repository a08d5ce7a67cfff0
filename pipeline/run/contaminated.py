"""Compares sources with evaluation data, and nothing else: no tokenizer is needed, and nothing is packed."""

from pathlib import Path

from ...schemas.config.config import RunConfig
from ...schemas.errors import OutputError
from ...schemas.report import Overlap
from ..contamination import compare, prepare_evaluation
from ..inputs.scan import scan_inputs
from ..inputs.source_formats import resolve_formats
from ..observer import Observer
from ..report.overlap import overlap_of
from ..store.local import LocalStore, require_no_file_above
from .workers import open_workers, open_workspace


def find_contamination(
    config: RunConfig,
    base: Path,
    observer: Observer,
    *,
    hits: Path | None = None,
) -> Overlap:
    """Compare the configuration's sources with the evaluation files of its `decontaminate`.

    Args:
        hits: where to write all hits, as JSON lines; None writes no file.

    Raises:
        ConfigError, InputError: something that the user can fix.
        OutputError: `hits` exists, or cannot be written.
    """
    section = config.decontaminate
    assert section is not None
    if hits is not None:
        require_no_file_above(hits, "--out")
        if hits.exists():
            raise OutputError(f"--out {hits} exists; remove it, or choose another file")
    local = config.run.model_copy(update={"executor": "local", "shard": None})
    work = open_workspace(config, base, observer)
    with open_workers(local, work) as executor:
        files = scan_inputs(config.sources, base, work.scratch)
        formats = resolve_formats(config.sources, base, files)
        for form in formats.values():
            if form.said is not None:
                observer.note(form.said)
        evaluation = prepare_evaluation(section, base, work.scratch)
        found = compare(config.sources, files, formats, evaluation, work.cache, executor, observer)
    if hits is not None:
        found.put(LocalStore(hits.absolute().parent), hits.name)
    return overlap_of(found.lines(), evaluation.payload(), found.examples())
