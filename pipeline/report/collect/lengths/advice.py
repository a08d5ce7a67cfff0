"""Recommend a length by simple rules, with the numbers behind them.

1. If long documents are truncated or dropped: the shortest length that keeps `KEEPS` of the trained tokens. If they are
   split: the shortest that also leaves `WHOLE` of the documents whole, or `WHOLE_TEXTS` for plain texts.
2. A longer length is chosen only if its rows use less space per trained token by more than `CHEAPER`, since longer rows
   waste less when documents barely fit, and only if at least `FEW_ROWS` rows are left.
3. A few documents that alone would make the length more than `FAR` times longer do not count, unless the run would stop
   at them or cut them into pieces: the other documents decide, and the advice names the few.
4. Texts are split if truncation would need longer rows than splitting. Conversations are not: their later pieces would
   be answers without the question.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .....schemas.config.config import RunConfig
from .....schemas.positions import Limit
from .....schemas.report import Advice, Histogram, Point
from .....schemas.units import exact, plural, share, times
from .....stages.forecast.length_stats import LengthStats
from .far_documents import FAR, FarDocuments, far_documents

KEEPS = 0.995
"""Share of trained tokens that a length must keep."""
WHOLE = 0.99
"""Share of documents that splitting must leave whole."""
WHOLE_TEXTS = 0.9
"""Share of plain-text documents that a length must keep whole; lower, because a later piece of a text lacks only its
context.
"""
CHEAPER = 0.02
"""Share of space per trained token that a longer length must save."""
TEXT = 0.9
"""Data with at least this share of trained tokens counts as plain text, where every piece can be trained alone."""
FEW_ROWS = 64
"""Least number of rows from which fuller rows can justify a longer length."""
DEAR = 0.1
"""Attention's share of the work from which the cost of the next length also names attention."""


def advise(
    points: Sequence[Point],
    config: RunConfig,
    stats: LengthStats,
    lengths: Histogram,
    batch: int,
    more: float = 1.0,
    limit: Limit | None = None,
) -> Advice | None:
    """The advised length and strategy; None if there are no tokens.

    Args:
        points: of every strategy, with ascending lengths.
        stats, lengths: the documents' lengths.
        batch: documents per padded batch.
        more: all documents over those that the points are of.
        limit: the longest length to recommend, with a reason if it is the model's. If all compared lengths are longer,
            the shortest is recommended.
    """
    table = _Table(points, config, stats, more, limit)
    if not table.total:
        return None
    pick = table.pick()
    named = "tight" if (pick.strategy, config.pack.strategy) == ("bfd", "tight") else pick.strategy
    return Advice(pick.max_length, named, table.sentence(pick), list(table.reasons(pick, lengths, batch)))


@dataclass(frozen=True, slots=True)
class _Pick:
    """The recommended length and strategy."""

    max_length: int
    strategy: str
    cuts: bool
    """Whether long documents are cut into pieces, by the strategy or before packing."""
    reached: bool
    """Whether the length keeps enough."""
    why: list[str] = field(default_factory=list)
    """Sentences that explain the strategy."""


class _Table:
    """The points by strategy and length."""

    def __init__(
        self, points: Sequence[Point], config: RunConfig, stats: LengthStats, more: float, limit: Limit | None
    ) -> None:
        self.config = config
        self.more = more
        self.at = {(one.strategy, one.max_length): one for one in points}
        self.compared = sorted({one.max_length for one in points})
        self.limit = limit
        affordable = [one for one in self.compared if limit is None or one <= limit.tokens]
        self.lengths = affordable or self.compared[:1]
        some = points[0]
        labels, tokens = some.labels + some.labels_lost, some.tokens + some.tokens_lost
        self.trained = labels > 0
        self.total = labels if self.trained else tokens
        self.share = labels / tokens if tokens else 0.0
        self.what = "trained tokens" if self.trained else "tokens"
        self.splits = config.truncate.overlong == "split"
        self.few: FarDocuments | None = None
        cuts = self.splits or self.share >= TEXT or config.pack.strategy in ("bfd_split", "wrapped")
        if self.trained and not cuts and config.truncate.overlong != "error":
            self.few = far_documents(stats, self._shortest("bfd", self.compared), self.compared, config)

    def keeps(self, point: Point) -> float:
        """Share of trained tokens that a point keeps; of all tokens, if none is trained."""
        return (point.labels if self.trained else point.tokens) / self.total

    def counted(self, point: Point) -> float:
        """Share of trained tokens that a point keeps, without the few far longer documents."""
        if self.few is None or point.strategy != "bfd":
            return self.keeps(point)
        return (point.labels - self.few.kept[point.max_length]) / max(self.total - self.few.labels, 1)

    def whole(self, point: Point) -> float:
        """Share of documents that are not cut."""
        return 1 - point.documents_cut / max(point.documents + point.documents_lost, 1)

    def cost(self, point: Point) -> float:
        """Space in rows per trained token. It decides the work of batches with fixed shapes, and the tokens per step;
        variable-length attention does not depend on it."""
        return point.slots / max(point.labels if self.trained else point.tokens, 1)

    def pick(self) -> _Pick:
        """Choose by the rules above."""
        strategy = self.config.pack.strategy
        if strategy in ("bfd_split", "wrapped"):
            return self._pieces("bfd_split")
        if self.splits:
            return self._pieces("bfd")
        cut, fit = self._shortest("bfd"), self._shortest("bfd_split")
        if self.few is not None and cut in (None, self.few.needs):
            self.few = None
            cut = self._shortest("bfd")
        strict = self.config.truncate.overlong == "error"
        if self.share >= TEXT and fit is not None and not strict and (cut is None or cut > fit):
            far = f"truncation would need {cut:,} to keep {share(KEEPS)}" if cut else self._most()
            return _Pick(fit, "bfd_split", True, True, [far[0].upper() + far[1:] + "."])
        if cut is not None:
            return _Pick(cut, "bfd", False, True)
        best = max(self.keeps(self.at["bfd", length]) for length in self.lengths)
        enough = [one for one in self.lengths if self.keeps(self.at["bfd", one]) >= best - 0.0005]
        return _Pick(enough[0], "bfd", False, False)

    def _most(self) -> str:
        best = max(self.keeps(self.at["bfd", length]) for length in self.lengths)
        return f"truncation keeps at most {share(best)} of the {self.what} at the lengths compared"

    def _pieces(self, strategy: str) -> _Pick:
        fit = self._shortest(strategy)
        if fit is not None:
            return _Pick(fit, strategy, True, True)
        best = max(self.lengths, key=lambda length: (self.whole(self.at[strategy, length]), -length))
        return _Pick(best, strategy, True, False)

    def _shortest(self, strategy: str, lengths: Sequence[int] | None = None) -> int | None:
        """The shortest length that keeps enough, or a longer one with fuller rows; None if none keeps enough."""
        enough = [one for one in lengths or self.lengths if self._keeps_enough(self.at[strategy, one])]
        if not enough:
            return None
        # Longer rows are fewer. With very few rows, an epoch has too few steps, however full they are.
        worth = [enough[0], *(one for one in enough[1:] if self.at[strategy, one].rows * self.more >= FEW_ROWS)]
        least = min(self.cost(self.at[strategy, length]) for length in worth)
        return next(one for one in worth if self.cost(self.at[strategy, one]) <= least * (1 + CHEAPER))

    def _keeps_enough(self, point: Point) -> bool:
        if self.counted(point) < KEEPS:
            return False
        if point.strategy == "bfd" and not self.splits:
            return self.config.truncate.overlong != "error" or not point.documents_cut + point.documents_lost
        return self.whole(point) >= (WHOLE_TEXTS if self.share >= TEXT else WHOLE)

    def sentence(self, pick: _Pick) -> str:
        """What the advised length keeps, and what the next one would cost."""
        point = self.at[pick.strategy, pick.max_length]
        kept, configured = f"{self._kept(point)} of the {self.what}", self.config.truncate.max_length
        if self.few is not None:
            read = "" if self.more == 1 else " of the sample"
            few = f"{plural(self.few.count, 'far longer document')}{read} ({self.few.named})"
            kept = f"{_all_or(self.counted(point))} of the {self.what} without {few}, and {self._kept(point)} with "
            kept += "it" if self.few.count == 1 else "them"
        if pick.cuts:
            how = f"overlong: split would keep {kept}" if self.splits else "bfd_split would lose no token"
            said = f"with {how} and leave {share(self.whole(point))} of documents whole"
        elif pick.max_length > configured or not pick.reached:
            said = f"would keep {kept}"
        else:
            said = f"{'is' if pick.max_length == configured else 'would be'} enough: it keeps {kept}"
        return f"max_length {pick.max_length:,} {said}; {self._next(pick, point)}{self._few(pick)}."

    def _kept(self, point: Point) -> str:
        return _all_or(self.keeps(point))

    def _next(self, pick: _Pick, point: Point) -> str:
        """What the next longer length costs, and what for."""
        if not point.documents_cut and not point.tokens_lost:
            return "no document is longer" if self.more == 1 else "no document in the sample is longer"
        if self.limit is not None and self.limit.reason and pick.max_length == self.lengths[-1]:
            return f"longer rows are not advised, because {self.limit.reason}"
        after = next((length for length in self.compared if length > pick.max_length), None)
        if after is None:
            return "it is the longest compared"
        other = self.at[pick.strategy, after]
        if pick.cuts:
            gain, of = self.whole(other) - self.whole(point), "of documents"
        else:
            gain, of = self.keeps(other) - self.keeps(point), "of them"
        if gain <= 0:
            return f"the next step up, {after:,}, keeps no more"
        return f"the next step up, {after:,}, costs {_more(point, other)} for {share(gain)} {of}"

    def reasons(self, pick: _Pick, lengths: Histogram, batch: int) -> "list[str]":
        """What led to the advice, and what else matters."""
        point = self.at[pick.strategy, pick.max_length]
        # First, if splitting a few documents would save most.
        out = [
            *([self.few.reason(self.total)] if self.few else []),
            *self._outliers(pick),
            *pick.why,
            self._documents(pick, point, lengths),
        ]
        out += self._before(pick)
        if self.limit is not None and self.lengths != self.compared:
            why = f", because {self.limit.reason}" if self.limit.reason else ""
            given = f"{'' if why else 'the given limit of '}{self.limit.tokens:,}"
            out.append(f"Lengths above {given} are compared but not advised{why}.")
        if not pick.reached:
            none = "None of the compared lengths"
            if self.lengths != self.compared:
                none = f"No length up to {self.lengths[-1]:,}"
            out.append(f"{none} keeps {share(KEEPS)} of the {self.what} in whole documents.")
        out += self._fill(pick, point)
        out += self._strategies(pick, point)
        out += self._configured(pick, point)
        padded = self.at.get(("padded", pick.max_length))
        if padded is not None and point.tokens and padded.slots > point.tokens:
            out.append(
                f"Padding in batches of {batch} would compute {times(padded.slots / point.tokens)} the tokens of these "
                "packed rows."
            )
        rows = round(point.rows * self.more)
        if 0 < rows < FEW_ROWS:
            steps = -(-rows // batch)
            out.append(
                f"{plural(rows, 'row')} {'is' if rows == 1 else 'are'} few: with {batch} per step, an "
                f"epoch has only {plural(steps, 'step')}. Take a smaller batch."
            )
        if not self.trained:
            out.append("No token is trained: check the mask before the length.")
        return out

    def _documents(self, pick: _Pick, point: Point, lengths: Histogram) -> str:
        cut = point.documents_cut + (0 if pick.cuts else point.documents_lost)
        longest = (
            f"the median has {exact(lengths.quantiles['p50'])} tokens, the longest {exact(lengths.quantiles['max'])}"
        )
        if not cut:
            if lengths.count == 1:
                return f"The only document fits into a row: it has {exact(lengths.quantiles['max'])} tokens."
            read = "" if self.more == 1 else " in the sample"
            return f"All {plural(lengths.count, 'document')}{read} fit into a row: {longest}."
        are = f"{'is' if cut == 1 else 'are'} cut{'' if pick.cuts else ' or left out'}"
        return f"{exact(cut)} of {plural(lengths.count, 'document')} {are}: {longest}."

    def _before(self, pick: _Pick) -> list[str]:
        """What the next shorter length keeps, if that is too little."""
        shorter = [length for length in self.lengths if length < pick.max_length]
        if not shorter or not pick.reached or self._keeps_enough(other := self.at[pick.strategy, shorter[-1]]):
            return []
        if self.counted(other) < KEEPS:
            few = "" if self.few is None else f" without {'it' if self.few.count == 1 else 'them'}"
            kept = f"keeps {share(self.counted(other), 2)} of the {self.what}{few}, less than {share(KEEPS)}"
        elif pick.cuts:
            kept = f"leaves {share(self.whole(other), 2)} of documents whole"
        else:
            return []
        return [f"The next step down, {shorter[-1]:,}, {kept}."]

    def _outliers(self, pick: _Pick) -> list[str]:
        """A sentence if a few long documents alone make the advised length so long."""
        if pick.cuts or self.share >= TEXT or self.few is not None:
            return []
        fit = self._shortest("bfd_split")
        if fit is None or fit * FAR >= pick.max_length:
            return []
        shorter = self.at["bfd", fit]
        few = shorter.documents_cut + shorter.documents_lost
        lost = share(1 - self.keeps(shorter))
        them = "it" if few == 1 else "them"
        return [
            f"Few documents need so much: at {fit:,} only {exact(few)} would be cut or left out, but {lost} of the "
            f"{self.what} would be lost with {them}. truncate.overlong: split at {fit:,} cuts {them} at natural places "
            "instead."
        ]

    def _few(self, pick: _Pick) -> str:
        """The short form of `_outliers`, for the advice's sentence."""
        if not self._outliers(pick):
            return ""
        fit = self._shortest("bfd_split")
        assert fit is not None
        shorter = self.at["bfd", fit]
        few = shorter.documents_cut + shorter.documents_lost
        return f"; without {plural(few, 'document')}, {fit:,} would be enough"

    def _fill(self, pick: _Pick, point: Point) -> list[str]:
        """How full the rows are, and why shorter ones are not advised."""
        gap = f"{share(point.gap, 2)} above" if point.gap else "at"
        # With pack.max_docs, all rows may have their most pieces before they are full of tokens.
        least = "; with pack.max_docs perhaps no plan reaches it" if point.gap and self.config.pack.max_docs else ""
        out = [f"Rows are {share(point.fill)} full, {gap} the bound that no plan can beat{least}."]
        before = [
            one for one in self.lengths if one < pick.max_length and self._keeps_enough(self.at[pick.strategy, one])
        ]
        if before:
            other = self.at[pick.strategy, before[0]]
            out.append(
                f"{before[0]:,} would also keep enough, but its rows would be only {share(other.fill)} full, because "
                "too few documents fit into one."
            )
        work = share(point.attention_flops / point.flops) if point.flops else "0 %"
        after = next((length for length in self.compared if length > pick.max_length), None)
        then = ""
        if after is not None and (other := self.at[pick.strategy, after]).flops:
            later = share(other.attention_flops / other.flops)
            then = f", and {later} at {after:,}" if later != work else f", as it is at {after:,}"
        return [*out, f"Attention is {work} of the work{then}."]

    def _strategies(self, pick: _Pick, point: Point) -> list[str]:
        """What other strategies would do at the same length."""
        split, wrapped = self.at["bfd_split", pick.max_length], self.at["wrapped", pick.max_length]
        out = []
        if not pick.cuts and point.tokens_lost:
            alone = "" if self.share >= TEXT else ", whose later pieces begin without their prompt"
            out.append(
                f"bfd_split would lose no token, but cut {plural(split.documents_cut, 'document')} into pieces{alone}."
            )
        elif pick.cuts and point.documents_cut and self.share < TEXT:
            out.append("The later pieces of a split document begin without its prompt.")
        if self.splits and point.tokens_lost:
            lost = share(point.tokens_lost / (point.tokens - point.overlap + point.tokens_lost))
            out.append(f"Pieces in which nothing is trained are left out: {lost} of the tokens.")
        if wrapped.documents_cut > split.documents_cut:
            out.append(
                f"wrapped would cut {plural(wrapped.documents_cut, 'document')} at the ends of rows for "
                f"{plural(split.rows - wrapped.rows, 'row')} fewer than bfd_split."
                if split.rows > wrapped.rows
                else f"wrapped would cut {plural(wrapped.documents_cut, 'document')} at the ends of rows and save none."
            )
        return out

    def _configured(self, pick: _Pick, point: Point) -> list[str]:
        """What the configured length does, if it is another one."""
        length = self.config.truncate.max_length
        if length == pick.max_length:
            return []
        other = self.at[pick.strategy, length]
        more = other.flops / point.flops - 1 if point.flops else 0.0
        work = f"{share(abs(more))} {'more' if more > 0 else 'less'} work" if round(more, 3) else "the same work"
        if pick.cuts:
            return [f"The configured {length:,} leaves {share(self.whole(other))} of documents whole, for {work}."]
        return [f"The configured {length:,} keeps {self._kept(other)} of the {self.what}, for {work}."]


def _all_or(part: float) -> str:
    return "all" if part == 1 else share(part)


def _more(point: Point, other: Point) -> str:
    """How much more work another point is, and how much more attention if that is a large part of the work."""
    work = share(max(other.flops / point.flops - 1, 0.0)) if point.flops else "0 %"
    if not point.attention_flops or max(one.attention_flops / one.flops for one in (point, other)) < DEAR:
        return f"{work} more work"
    return f"{work} more work, {share(other.attention_flops / point.attention_flops - 1)} more attention,"
