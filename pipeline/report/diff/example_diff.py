"""Finds the examples that are packed in A, in B, or in both, and compares their lengths."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ....schemas.manifest import ShardRecord
from ....schemas.units import exact, plural
from ...dataset.open import Finished
from ...observer import Observer
from ..collect.lengths.histograms import Tally
from .changes import ALL, Contents, ExamplesChange, LengthsChange, ShownExample, SourceExamples
from .digests import Digests
from .input_diff import renames

SHOWN = 20
"""Maximum number of examples of each kind to name."""
AT_ONCE = 1 << 21
"""Documents compared at a time."""
KINDS = ("only_a", "only_b", "tokens", "labels", "copies", "moved")
"""The ways in which an example can differ."""
_FIELDS = ("only_a", "only_b", "same", "tokens", "labels", "copies", "moved")
_Places = NDArray[np.int64]


def examples_change(
    a: Finished, b: Finished, observer: Observer, *, quick: bool
) -> tuple[ExamplesChange, LengthsChange]:
    """Compare the packed examples of two datasets of one kind.

    Args:
        quick: compare only ids and lengths, without opening shards.

    Raises:
        IntegrityError: a file that is needed is missing or damaged.
    """
    renamed = renames(a, b)
    left, right = Digests(a), Digests(b, renamed)
    if not quick:
        observer.begin("compare", sum(shard.tokens for one in (a, b) for shard in _shards(one)), "tok")
        left.read_rows(observer)
        right.read_rows(observer)
        observer.end()
    return _Join(left, right, quick, bool(renamed)).change(), _lengths(left, right, quick)


def _shards(dataset: Finished) -> Iterator[ShardRecord]:
    for split in dataset.manifest.splits.values():
        yield from split.shards


class _Join:
    """Matches the examples of A with those of B, in chunks."""

    def __init__(self, a: Digests, b: Digests, quick: bool, renamed: bool) -> None:
        self.a, self.b = a, b
        self.quick = quick
        self.renamed = renamed
        self.sources = [*a.sources, *(name for name in b.sources if name not in a.sources)]
        self.splits = [*a.splits, *(name for name in b.splits if name not in a.splits)]
        self.buckets = max(1, -(-max(a.count, b.count) // AT_ONCE))
        self.counts = np.zeros((len(self.sources), len(_FIELDS)), np.int64)
        self.places: dict[str, NDArray[np.int64]] = {kind: np.zeros((0, 2), np.int64) for kind in KINDS}

    def change(self) -> ExamplesChange:
        """Compare all examples."""
        for bucket in range(self.buckets):
            self._ids(bucket)
        contents = None
        if not self.quick:
            found = [_alike(self.a.digests, self.b.digests, bucket, self.buckets) for bucket in range(self.buckets)]
            both = sum(found)
            contents = Contents(both, self.a.count - both, self.b.count - both)
        sources = [SourceExamples(name, *row.tolist()) for name, row in zip(self.sources, self.counts, strict=True)]
        total = SourceExamples(ALL, *self.counts.sum(axis=0).tolist())
        return ExamplesChange(
            sentence=self._sentence(total, contents),
            compared=self._compared(),
            sources=[total, *sources] if len(sources) > 1 else sources,
            contents=contents,
            shown={kind: shown for kind in KINDS if (shown := self._shown(kind))},
        )

    def _ids(self, bucket: int) -> None:
        mine, yours = (_of_bucket(side.keys, bucket, self.buckets) for side in (self.a, self.b))
        _, one, other = np.intersect1d(self.a.keys[mine], self.b.keys[yours], return_indices=True)
        none = np.full(max(len(mine), len(yours)), -1)
        alone = np.delete(mine, one)
        self._add("only_a", alone, none[: len(alone)])
        alone = np.delete(yours, other)
        self._add("only_b", none[: len(alone)], alone)
        here, there = mine[one], yours[other]
        if self.quick:
            changed = self.a.lengths[here] != self.b.lengths[there]
            self._add("tokens", here[changed], there[changed])
            self._add("same", here[~changed], there[~changed])
            return
        changed = self.a.digests[here] != self.b.digests[there]
        trained = ~changed & (self.a.labels[here] != self.b.labels[there])
        self._add("tokens", here[changed], there[changed])
        self._add("labels", here[trained], there[trained])
        same = ~changed & ~trained
        self._add("same", here[same], there[same])
        copied = self.a.copies[here] != self.b.copies[there]
        self._add("copies", here[copied], there[copied])
        splits = [np.array([self.splits.index(name) for name in side.splits], np.int8) for side in (self.a, self.b)]
        moved = splits[0][self.a.split[here]] != splits[1][self.b.split[there]]
        self._add("moved", here[moved], there[moved])

    def _add(self, kind: str, here: _Places, there: _Places) -> None:
        """Count pairs of positions, where -1 means absent, and remember the first pairs."""
        side, places = (self.a, here) if kind == "only_a" else (self.b, there)
        known = np.array([self.sources.index(name) for name in side.sources], np.int64)
        found = known[side.source[places]] if len(places) else np.zeros(0, np.int64)
        self.counts[:, _FIELDS.index(kind)] += np.bincount(found, minlength=len(self.sources))
        if kind in self.places:
            pairs = np.concatenate([self.places[kind], np.stack([here, there], axis=1)])
            order = np.argsort(pairs[:, 0 if kind == "only_a" else 1], kind="stable")[:SHOWN]
            self.places[kind] = pairs[order]

    def _shown(self, kind: str) -> list[ShownExample]:
        pairs = self.places[kind]
        a, b = (self._named(side, pairs[:, at]) for at, side in ((0, self.a), (1, self.b)))
        out = []
        for here, there in pairs.tolist():
            mine, yours = a.get(here), b.get(there)
            row = yours or mine
            assert row is not None
            was = mine["id"] if mine and yours and mine["id"] != yours["id"] else None
            one, other = _figures(self.a, here, self.quick), _figures(self.b, there, self.quick)
            both = (value for pair in zip(one, other, strict=True) for value in pair)
            out.append(ShownExample(row["id"], was, row["source"], *both))  # type: ignore[arg-type]
        return out

    def _named(self, side: Digests, places: _Places) -> dict[int, dict[str, str]]:
        wanted = np.unique(places[places >= 0])
        return dict(zip(wanted.tolist(), side.rows_of(wanted), strict=True))

    def _compared(self) -> str:
        if self.quick:
            said = (
                "Examples are compared by id and by length before any cut. No rows were read, so examples with "
                "different text of the same length count as the same."
            )
        else:
            said = (
                "Examples with the same id are compared token by token, with their labels, as packed. Where a document "
                "is cut between rows does not matter, except that the first token of a piece is never trained."
            )
        if self.renamed:
            said += " Examples of a renamed file are compared with those of the old file."
        return said

    def _sentence(self, total: SourceExamples, contents: Contents | None) -> str:
        both = total.same + total.tokens + total.labels
        if not (total.only_a or total.only_b or total.tokens or total.labels or total.copies or total.moved):
            said = f"the same {plural(both, 'example')} with the same tokens"
            if self.quick:
                return f"Both have the same {plural(both, 'example')}, with the same lengths; rows were not compared."
            return f"Both have {said} and the same labels."
        parts = [f"{exact(total.same)} {'of the same length' if self.quick else 'the same'}"]
        for number, what in (
            (total.tokens, "of another length" if self.quick else "with other tokens"),
            (total.labels, "with other labels"),
        ):
            if number:
                parts.append(f"{exact(number)} {what}")
        said = f"{plural(both, 'example')} {'is' if both == 1 else 'are'} in both"
        if both and total.same == both:
            parts = ["of the same length" if self.quick else "with the same tokens"]
        said += f" ({', '.join(parts)}), " if both else ", "
        said += f"{exact(total.only_a)} only in A, {exact(total.only_b)} only in B."
        for number, what in ((total.copies, "packed a different number of times"), (total.moved, "in another split")):
            if number:
                said += f" {exact(number)} of those in both {'is' if number == 1 else 'are'} {what}."
        if contents is not None and contents.both > total.same + total.labels:
            said += f" Ids aside, {plural(contents.both, 'example')} have the same tokens in both."
        return said


def _figures(side: Digests, place: int, quick: bool) -> list[int | str | None]:
    """Return tokens, trained tokens, copies and split of an example; None for values that are absent or unknown."""
    if place < 0:
        return [None] * 4
    if quick:
        return [int(side.lengths[place]), None, None, None]
    numbers: list[int | str | None] = [int(each[place]) for each in (side.tokens, side.trained, side.copies)]
    return [*numbers, side.splits[side.split[place]]]


def _of_bucket(keys: NDArray[np.uint64], bucket: int, buckets: int) -> _Places:
    return np.arange(len(keys)) if buckets == 1 else np.flatnonzero(keys % np.uint64(buckets) == bucket)


def _alike(a: NDArray[np.uint64], b: NDArray[np.uint64], bucket: int, buckets: int) -> int:
    """Count the digests of A that can be paired with an equal one of B."""
    mine, yours = (np.unique(side[_of_bucket(side, bucket, buckets)], return_counts=True) for side in (a, b))
    _, one, other = np.intersect1d(mine[0], yours[0], assume_unique=True, return_indices=True)
    return int(np.minimum(mine[1][one], yours[1][other]).sum())


def _lengths(a: Digests, b: Digests, quick: bool) -> LengthsChange:
    tallies = []
    for side in (a, b):
        tally = Tally()
        values = side.lengths if quick else side.tokens
        for first in range(0, side.count, AT_ONCE):
            tally.add(values[first : first + AT_ONCE])
        tallies.append(tally)
    most = max(tally.most for tally in tallies)
    left, right = (tally.logarithmic(most=most) for tally in tallies)
    what = (
        "Tokens of each packed example before any cut; copies are not counted."
        if quick
        else "Tokens of each packed example in the rows; copies are not counted."
    )
    return LengthsChange(_said(left.quantiles, right.quantiles, left.mean, right.mean), what, left, right)


def _said(a: dict[str, float], b: dict[str, float], mean_a: float, mean_b: float) -> str:
    if not a or not b:
        return "One of the two datasets has no examples." if a or b else "Neither dataset has examples."
    if a == b and mean_a == mean_b:
        return f"Lengths are the same in both: the median has {exact(a['p50'])} tokens, the longest {exact(a['max'])}."
    return (
        f"The median example has {_pair(a['p50'], b['p50'])} tokens, the longest {_pair(a['max'], b['max'])}; "
        f"the mean is {_pair(mean_a, mean_b)}."
    )


def _pair(a: float, b: float) -> str:
    return exact(a) if exact(a) == exact(b) else f"{exact(a)} → {exact(b)}"
