"""Samples the inputs: writes some rows of every source to files for the ordinary encoder.

No input is scanned or hashed as a whole, so the sample takes seconds however large the inputs are. Every source gets
its share of the rows. Within a source, rows are taken in stretches from evenly spaced places.
"""

import math
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ....schemas.config.config import RunConfig, SourceConfig
from ....schemas.errors import ConfigError, InputError
from ...inputs.blocks import split_name
from ...inputs.detect import Container
from ...inputs.find import Found, InputKind, find_inputs, labels
from ...inputs.formats import NoRowsError
from ...observer import Observer
from ...store.open import cache_root, is_url, resolve_place
from ..rejects import Rejects
from .sample_folder import sample_folder
from .sampling_rows import (
    SampledFile,
    Taken,
    count_lines,
    line_bytes,
    look,
    table_rows,
    take_first,
    take_lines,
    take_rows,
)

STRETCH = 100
"""Maximum number of consecutive rows to take."""
_PLACES = 100
"""Minimum number of stretches per source, if it has enough rows; neighbouring rows are often alike."""
_LEAST = 20
"""Minimum number of rows per source, however small its share; a source without rows would look broken."""
_PROBES = 16
_FOOTERS = 64
"""Maximum number of files of a source whose row counts are read; the others are estimated."""
_COUNTED = 64 << 20
"""Up to this number of bytes, lines are counted instead of estimated."""
_READ_ALL = 1.05
"""All rows are read if the inputs have at most this multiple of the requested rows."""


@dataclass(slots=True)
class Sampled:
    """A configuration whose sources are a sample."""

    config: RunConfig
    asked: RunConfig
    """The user's configuration."""
    rows_estimated: float
    """Estimated rows of all inputs."""
    exhaustive: bool
    """Whether the sample has all rows; if so, `config` is the user's configuration."""
    origins: dict[str, tuple[str, str | None, Taken]] = field(default_factory=dict)
    """(name of the input, path of the input, what was taken) for the path of each file of the sample."""

    def true_rejects(self, rejects: Rejects) -> Rejects:
        """Return the rejects of the sample, with the names of the real inputs and a nearby byte instead of a line."""
        shown = []
        for reject in rejects.shown:
            name, path, taken = self.origins.get(reject.path or "", (reject.file, reject.path, Taken()))
            starts = [start for first, start in taken.starts if reject.line is not None and first < reject.line]
            near = f" (after byte {starts[-1]:,})" if starts else ""
            line = reject.line if reject.path not in self.origins else None
            shown.append(replace(reject, file=name, path=path, line=line, detail=reject.detail + near))
        return Rejects(shown, rejects.file)

    def true_place(self, error: NoRowsError) -> NoRowsError:
        """Return the error, with the name of the real input."""
        name, path, taken = self.origins.get(error.path, (error.path, None, Taken()))
        near = f"after byte {taken.starts[0][1]:,}, " if taken.starts else ""
        said = error.said.replace("none of its ", "of what was looked at, none of ", 1)
        return NoRowsError(error.where, path or name, None, near + said)


@dataclass(slots=True)
class _Source:
    """A source to sample."""

    config: SourceConfig
    pieces: list[SampledFile]
    weights: list[float]
    """Rows of each piece, counted or estimated."""
    rows: float
    """Rows of all pieces, limited by `max_rows`."""
    space: float
    """Share of all rows that are within `max_rows`."""
    counted: bool = False
    """Whether the rows were counted, not estimated."""


_WHOLE = (Container.ARROW_FILE, Container.ARROW_STREAM)
"""Containers that are sampled from a local file."""


@contextmanager
def sampled(config: RunConfig, base: Path, rows: int, observer: Observer) -> Iterator[Sampled]:
    """Make a sample of about `rows` rows, which exists until the context ends.

    Raises:
        ConfigError: `rows` is not positive; an input is missing.
        InputError: an input cannot be read.
    """
    if rows < 1:
        raise ConfigError(f"--rows {rows}: give the number of rows to sample, such as 20000")
    cache = Path(tempfile.gettempdir())
    place = cache_root(config.cache, resolve_place(config.out, base), base)
    if not is_url(place):
        cache = Path(place)
    observer.begin("sample", 0, "")
    sources = [_measure(source, base, cache, observer) for source in config.sources]
    every = sum(source.rows for source in sources)
    if every <= rows * _READ_ALL:
        observer.end()
        yield Sampled(config, config, every, True)
        return
    with sample_folder() as home:
        out = Sampled(config, config, 0.0, False)
        chosen = []
        for number, source in enumerate(sources):
            count = max(1, round(rows * source.rows / every))
            chosen.append(_take(source, count, home / str(number), config.seed + number, out))
        own = home / "cache"
        own.mkdir()
        out.config = config.model_copy(update={"sources": tuple(chosen), "cache": str(own)})
        observer.end()
        yield out


def _measure(source: SourceConfig, base: Path, cache: Path, observer: Observer) -> _Source:
    """Return a source's inputs, with their rows counted or estimated."""
    found = [one for input in find_inputs(source, base) for one in _here(input, source, cache, observer)]
    pieces = [look(one) for one in found]
    weights = [0.0] * len(pieces)
    lines = [index for index, piece in enumerate(pieces) if piece.lines]
    few = bool(lines) and sum(pieces[index].found.size for index in lines) <= _COUNTED
    if few:
        for index in lines:
            weights[index] = float(count_lines(pieces[index]))
    else:
        _by_bytes(pieces, lines, weights, _probe)
    tables = [index for index, piece in enumerate(pieces) if not piece.lines and not piece.leading]
    _by_bytes(pieces, tables, weights, lambda some: sum(table_rows(piece) for piece in some))
    _by_bytes(pieces, [index for index, piece in enumerate(pieces) if piece.leading], weights, _leading)
    if any(piece.leading for piece in pieces):
        observer.note(
            f"sources.{source.name}: only the first rows of compressed files and CSV are sampled; they may differ "
            "from the others"
        )
    rows = sum(weights)
    limit = min(rows, source.max_rows) if source.max_rows is not None else rows
    counted = few and len(lines) == len(pieces)
    return _Source(source, pieces, weights, limit, limit / rows if rows else 1.0, counted)


def _here(found: Found, source: SourceConfig, cache: Path, observer: Observer) -> list[Found]:
    """The input, copied to this machine if it cannot be sampled remotely."""
    if found.kind is InputKind.HUB:
        from ...inputs.hub import load

        observer.note(f"sources.{source.name}: the datasets library loads all of hf://{found.name} before sampling")
        loaded = load(found.name, source.subset, source.split, cache, f"sources.{source.name}.path")
        return [_local(path) for path, _ in loaded]
    if found.kind is InputKind.URL and look(found).container in _WHOLE:
        from ...inputs.fetch import fetch

        return [_local(fetch(found.name, found.size, found.stamp, cache))]
    return [found]


def _local(path: Path) -> Found:
    stat = path.stat()
    return Found(InputKind.LOCAL, str(path), stat.st_size, stat.st_mtime_ns)


def _by_bytes(
    pieces: list[SampledFile], which: list[int], weights: list[float], count: Callable[[list[SampledFile]], float]
) -> None:
    """Set the rows of some pieces: a few are counted, the others estimated by size."""
    if not which:
        return
    step = max(1, len(which) // _FOOTERS)
    some = [pieces[index] for index in which[::step]]
    rows, size = float(count(some)), sum(max(piece.found.size, 1) for piece in some)
    for index in which:
        weights[index] = rows * max(pieces[index].found.size, 1) / size


def _probe(some: list[SampledFile]) -> float:
    """Estimate the rows of some line files, from the length of lines at some places."""
    read = lines = 0
    each = max(1, _PROBES // len(some))
    for piece in some:
        more, ends = line_bytes(piece, [(number + 0.5) / each for number in range(each)])
        read, lines = read + more, lines + ends
    return sum(piece.found.size for piece in some) * max(lines, 1) / max(read, 1)


def _leading(some: list[SampledFile]) -> float:
    """Estimate the rows of some files that can be read only from the start."""
    rows = size = 0
    for piece in some:
        with tempfile.TemporaryFile() as nowhere:
            taken = take_first(piece, 10 * STRETCH, nowhere)
        rows, size = rows + taken.rows, size + taken.bytes
    return sum(piece.found.size for piece in some) * max(rows, 1) / max(size, 1)


def _take(source: _Source, count: int, folder: Path, seed: int, out: Sampled) -> SourceConfig:
    """Write the sample of a source, and return its configuration."""
    count = max(count, min(_LEAST, math.ceil(source.rows)))
    stretches = max(min(count, _PLACES), -(-count // STRETCH))
    chance = random.Random(seed)
    part = min(1.0, count / max(source.rows, 1.0))
    places = [(number + chance.random() * (1 - part)) / stretches * source.space for number in range(stretches)]
    span = part / stretches * source.space
    names = labels([piece.found.path for piece in source.pieces])
    paths: list[str] = []
    taken_rows = estimated = 0.0
    whole, before = sum(source.weights), 0.0
    for number, (piece, weight, name) in enumerate(zip(source.pieces, source.weights, names, strict=True)):
        first, before = before, before + weight / whole
        scale = whole / weight if weight else 0.0
        mine = [(place - first) * scale for place in places if weight and first <= place < before]
        if not mine:
            continue
        target = folder / f"{number:05d}" / piece.name
        target.parent.mkdir(parents=True)
        taken = _take_piece(piece, mine, span * scale, weight, target)
        if not taken.rows:
            continue
        paths.append(str(target))
        suffix = split_name(piece.found.path.name)[1]
        shown = name if name.endswith(suffix) else name + suffix
        local = str(piece.found.path) if piece.found.kind is InputKind.LOCAL else None
        out.origins[str(target)] = (shown, local, taken)
        taken_rows += taken.rows
        estimated += taken.bytes
    if not paths:
        raise InputError(f"sources.{source.config.name}: the sample found no row; leave out --rows")
    # For line files, the rows just read give a better estimate than the first probe.
    lines = all(piece.lines for piece in source.pieces)
    better = lines and source.space == 1 and not source.counted and estimated
    size = sum(piece.found.size for piece in source.pieces)
    out.rows_estimated += max(taken_rows / estimated * size if better else source.rows, taken_rows)
    update = {"path": tuple(paths), "split": None, "subset": None, "max_rows": None}
    return source.config.model_copy(update=update)


def _take_piece(piece: SampledFile, places: Sequence[float], span: float, rows: float, target: Path) -> Taken:
    """Take rows from several places of one input.

    Args:
        places: where to take rows, from 0 to 1.
        span: the share of the input to take from each place.
        rows: the input's approximate number of rows.
    """
    each = max(1, round(span * rows))
    if not piece.lines and not piece.leading:
        return take_rows(piece, places, each, target)
    with target.open("wb") as file:
        if piece.leading:
            return take_first(piece, max(1, round(span * rows * len(places))), file)
        return take_lines(piece, places, span, file)
