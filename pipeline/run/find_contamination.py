"""Compares sources with evaluation data, and nothing else: no tokenizer is needed, and nothing is packed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...schemas.config.config import ContaminationConfig, RunConfig
from ...schemas.errors import ConfigError, OutputError
from ...schemas.report.evaluation_hits import Contamination
from ..configfile import Setting, load_config
from ..contamination import find_contamination, prepare_evaluation
from ..inputs.scan import scan_inputs
from ..inputs.source_formats import resolve_formats
from ..observer import Observer
from ..report.contamination_summary import contamination_of
from ..store.local import LocalStore, require_no_file_above
from ..store.open_store import is_url
from .workers import open_workers, open_workspace


def contamination(
    config: "RunConfig | Mapping[str, Any] | str | Path",
    *,
    against: str | Path | Sequence[str | Path] | None = None,
    hits: str | Path | None = None,
    observer: Observer | None = None,
    base: Path | None = None,
) -> Contamination:
    """Find training examples that share text with evaluation rows. Nothing is packed, and no tokenizer is needed.

    >>> sources = [{"name": "pairs", "path": "pairs.jsonl", "keys": {"prompt": "question", "completion": "answer"}}]
    >>> found = packtrain.contamination({"sources": sources}, against="test.jsonl")
    >>> found.examples
    1

    Args:
        config: as for `run`. A mapping needs only `sources`; without `cache`, nothing is kept. With a file, what is
            found stays in its cache: a run with `contamination` finds it there.
        against: evaluation files, as in a source's `path`; relative ones start at the working directory. By default
            those of `contamination.against`.
        hits: where to write all hits, as JSON lines; None writes no file.
        base: where relative paths of `config` start.

    Raises:
        ConfigError, InputError: something that the user can fix.
        OutputError: `hits` exists, or cannot be written.
    """
    observer = observer or Observer()
    paths = [against] if isinstance(against, str | Path) else against
    # A configuration must have `out` and `tokenizer`, and neither is used here.
    if isinstance(config, Mapping):
        config = {"out": "packed", "tokenizer": {"path": "unused"}, **config}
    settings = []
    if paths is not None:
        absolute = [str(path) if is_url(str(path)) else str(Path(path).absolute()) for path in paths]
        settings.append(Setting("contamination.against", absolute, origin="against"))
    with TemporaryDirectory(prefix="packtrain-contamination-") as temporary:
        if isinstance(config, Mapping) and config.get("cache") is None:
            settings.append(Setting("cache", temporary, origin="the cache"))
        loaded, folder = load_config(config, base, settings)
        if loaded.contamination is None:
            raise ConfigError("--against is needed: the evaluation file to compare with, such as test.jsonl")
        return _compare(loaded, folder, loaded.contamination, observer, Path(hits) if hits is not None else None)


def _compare(
    config: RunConfig, base: Path, section: ContaminationConfig, observer: Observer, hits: Path | None
) -> Contamination:
    """Compare the sources of a configuration with the evaluation rows of its `contamination` section.

    Args:
        base: where relative paths of the configuration start.
        hits: the file for all hits, which must not exist; None writes none.
    """
    if hits is not None:
        require_no_file_above(hits, "--out")
        if hits.exists():
            raise OutputError(f"--out {hits} exists; remove it, or choose another file")
    # On this machine, whatever the configuration says of a run.
    local = config.run.model_copy(update={"executor": "local", "shard": None})
    work = open_workspace(config, base, observer)
    with open_workers(local, work) as executor:
        files = scan_inputs(config.sources, base, work.scratch)
        formats = resolve_formats(config.sources, base, files)
        for form in formats.values():
            if form.note is not None:
                observer.note(form.note)
        evaluation = prepare_evaluation(section, base, work.scratch)
        all_hits = find_contamination(config.sources, files, formats, evaluation, work.cache, executor, observer)
    if hits is not None:
        all_hits.put(LocalStore(hits.absolute().parent), hits.name)
    return contamination_of(all_hits.hits(), evaluation.payload(), all_hits.compared_examples())
