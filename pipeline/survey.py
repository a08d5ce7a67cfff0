"""The survey of a run: one decision after another about every document, and what the sums are, in bounded memory.

Documents are read a lot at a time, in their order, and forgotten again. What stays are a few numbers a part. Where a
document's fate depends on others, there are passes before: one for duplicates, one or two for weights. Whoever needs a
document later reads its lot again and decides alike (`Surveyor.lots`); a run of which all documents are one lot is
read once, and kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.config import RunConfig
from ..schemas.errors import IntegrityError
from ..schemas.ledger import Ledger
from ..stages.arrays import numbers
from .accounts import account_documents
from .catalogue import Catalogue, Holdout, PartPlace, read_catalogue
from .deciding import Decisions, Mixer, Repeats, Twins, decide
from .selecting import Chosen, Refused, limits_of, mask_of, select_alone, source_bounds
from .splitting import turns_cut
from .windows import LOT_DOCUMENTS, LOT_PARTS, Gathering, Lot, Window, groups, parts_in


@dataclass(slots=True)
class Survey:
    """What is packed of a run, in sums."""

    ledger: Ledger
    """The account before anything is packed: it closes when the shards are added."""
    splits: tuple[str, ...]
    parts: int
    tokens: int = 0
    """Of all rows, alignment padding included."""
    cuts: list[int] = field(default_factory=list)
    """By source: cuts through trained turns, by truncation and by splitting."""
    heads: list[int] = field(default_factory=list)
    """By source: tokens asked for that stand first in a piece, but for pieces that the strategy cuts."""
    totals: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """By split: (parts,) tokens that are packed."""
    sections: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """By split: (parts,) stretches that are planned."""
    packed: list[pa.Array] = field(default_factory=list)
    """(documents,) whether each is packed: a bit a document, lot by lot."""
    repeats: Repeats | None = None
    """What the packed documents say again, where duplicates are kept."""

    def add(self, lot: Lot, names: Sequence[str], config: RunConfig, *, cuts: bool = True) -> None:
        """Add what is decided about a lot.

        Args:
            names: of the sources.
            cuts: whether what is cut could be turns.
        """
        chosen, catalogue = lot.chosen, lot.chosen.catalogue
        which = splits_of(config, catalogue)
        heads = account_documents(self.ledger, names, chosen, which)
        self.heads = [a + b for a, b in zip(self.heads or [0] * len(heads), heads, strict=True)]
        for split in self.splits:
            sections = chosen.sections(which[split])
            at = np.searchsorted(sections.documents, catalogue.part_starts)
            sums = np.zeros(len(sections) + 1, dtype=np.int64)
            np.cumsum(sections.lengths, out=sums[1:])
            self.totals.setdefault(split, np.zeros(self.parts, np.int64))[lot.parts] = np.diff(sums[at])
            self.sections.setdefault(split, np.zeros(self.parts, np.int64))[lot.parts] = np.diff(at)
            align = config.pack.align
            self.tokens += int((-(-sections.lengths // align)).sum(dtype=np.int64)) * align
        if cuts:
            self.cuts = [a + b for a, b in zip(self.cuts, cuts_before_packing(chosen, config, len(names)), strict=True)]
        self.packed.append(numbers(chosen.packed))
        if self.repeats is not None and catalogue.digests is not None:
            self.repeats.add(catalogue.digests[chosen.packed])


class Surveyor:
    """Reads the documents of a run, as often as is needed.

    Args:
        places: of all parts.
        sizes: (parts,) documents of each.
        tokenizer_json: its vocabulary says where long documents may be split.
        scratch: a folder for files without a name.
    """

    def __init__(
        self,
        config: RunConfig,
        places: Sequence[PartPlace],
        sizes: Sequence[int],
        tokenizer_json: str,
        scratch: Path,
    ) -> None:
        self._config = config
        self._places = places
        self._tokenizer_json = tokenizer_json
        self._scratch = scratch
        self._names = [source.name for source in config.sources]
        self._sizes = np.array(sizes, dtype=np.int64)
        self._starts = np.zeros(len(places) + 1, dtype=np.int64)
        np.cumsum(self._sizes, out=self._starts[1:])
        bounds = source_bounds(self._starts, [place.source for place in places], len(self._names))
        self._decisions = Decisions(config.seed, bounds)
        self._bounds = bounds
        self._kept: Lot | None = None

    def survey(self, ledger: Ledger) -> Survey:
        """Decide about every document, and add it all up.

        Args:
            ledger: what encoding counted.

        Raises:
            InputError: `overlong: error`, and a document is too long.
            ConfigError: a weight asks for too many copies.
        """
        config = self._config
        survey = Survey(ledger, tuple(split_names(config)), len(self._places), cuts=[0] * len(self._names))
        if config.duplicates == "keep":
            survey.repeats = Repeats(int(self._starts[-1]))
        if int(self._starts[-1]) <= LOT_DOCUMENTS and len(self._places) <= LOT_PARTS:
            lots: Iterator[Lot] = iter([self._whole()])
        else:
            refused = Refused()
            self._decide(refused)
            lots = self._lots(np.arange(len(self._places)), digests=survey.repeats is not None, refused=refused)
            lots = self._checked(lots, refused)
        for lot in lots:
            survey.add(lot, self._names, config)
        if survey.repeats is not None:
            survey.repeats.count()
        return survey

    def window(self, parts: NDArray[np.int64], split: str) -> Window:
        """The documents of some parts, rising, that a split packs."""
        gathering = Gathering()
        for lot in [self._kept] if self._kept is not None else self._lots(parts):
            among, which = parts_in(lot, parts)
            gathering.add(lot, which & splits_of(self._config, lot.chosen.catalogue)[split], among)
        return gathering.window()

    def _whole(self) -> Lot:
        parts = np.arange(len(self._places))
        (lot,) = self._lots(parts, digests=True, most=LOT_DOCUMENTS)
        decide(lot.chosen, self._config)
        self._kept = lot
        return lot

    def _decide(self, refused: Refused) -> None:
        """The passes before: what of a document depends on others."""
        config, everything = self._config, np.arange(len(self._places))
        if config.duplicates == "drop":
            twins = Twins(int(self._starts[-1]), self._scratch)
            for lot in self._lots(everything, digests=True, refused=refused):
                stays = lot.chosen.selection.stays
                assert lot.chosen.catalogue.digests is not None
                twins.add(lot.documents[stays], lot.chosen.catalogue.digests[stays])
            refused.check(config)
            self._decisions.twins = twins.find()
        if Mixer.needed(config):
            mixer = Mixer(config, self._bounds)
            for lot in self._lots(everything):
                mixer.count(lot.chosen, lot.documents)
            if mixer.aim():
                for lot in self._lots(everything):
                    mixer.look(lot.chosen, lot.documents)
            self._decisions.quotas = mixer.quotas()

    def _checked(self, lots: Iterator[Lot], refused: Refused) -> Iterator[Lot]:
        yield from lots
        refused.check(self._config)

    def _lots(
        self,
        parts: NDArray[np.int64],
        *,
        digests: bool = False,
        refused: Refused | None = None,
        most: int | None = None,
    ) -> Iterator[Lot]:
        """Read parts, rising, and decide about their documents, as far as is known by now."""
        config, mask = self._config, mask_of(self._config)
        holdout = Holdout(config.holdout.fraction, config.holdout.by == "group", config.seed)
        for group in groups(parts, self._sizes, LOT_DOCUMENTS if most is None else most):
            places = [self._places[index] for index in group.tolist()]
            catalogue = read_catalogue(places, mask, limits_of(config), holdout, self._names, digests=digests)
            sizes = np.diff(catalogue.part_starts)
            if not np.array_equal(sizes, self._sizes[group]):
                wrong = int(np.flatnonzero(sizes != self._sizes[group])[0])
                raise IntegrityError(
                    f"the encoded part {places[wrong].part.name} has {int(sizes[wrong]):,} examples, but its record "
                    f"says {int(self._sizes[group][wrong]):,}; delete both and run again, they will be made anew"
                )
            shift = self._starts[group] - catalogue.part_starts[:-1]
            documents = np.arange(len(catalogue), dtype=np.int64) + np.repeat(shift, sizes)
            chosen = select_alone(catalogue, config, mask, self._tokenizer_json, refused)
            self._decisions.apply(chosen, documents)
            yield Lot(group, documents, chosen)


def split_names(config: RunConfig) -> list[str]:
    """Which splits a run writes."""
    return ["train", "holdout"] if config.holdout.fraction > 0 else ["train"]


def splits_of(config: RunConfig, catalogue: Catalogue) -> Mapping[str, NDArray[np.bool_]]:
    """(N,) which documents belong to each split."""
    if config.holdout.fraction > 0:
        return {"train": ~catalogue.held_out, "holdout": catalogue.held_out}
    return {"train": np.ones(len(catalogue), dtype=np.bool_)}


def cuts_before_packing(chosen: Chosen, config: RunConfig, sources: int) -> list[int]:
    """By source: cuts through trained turns, by truncation, which cuts all copies at once, and by splitting."""
    catalogue, copies = chosen.catalogue, chosen.selection.copies
    begins = np.flatnonzero(chosen.packed & (catalogue.low > 0))
    ends = np.flatnonzero(chosen.packed & (catalogue.high < catalogue.lengths))
    documents = np.concatenate([begins, ends])
    places = np.concatenate([catalogue.low[begins], catalogue.high[ends]])
    order = np.argsort(documents, kind="stable")
    documents, places = documents[order], places[order]
    through = np.zeros(len(catalogue), dtype=np.int64)
    np.add.at(through, documents, turns_cut(catalogue, documents, places, mask_of(config)) * copies[documents])
    if chosen.split is not None:
        through[chosen.split.documents] += chosen.split.cuts * copies[chosen.split.documents]
    return by_source(catalogue, np.flatnonzero(through), through[through > 0], sources)


def cuts_by_packing(
    placed: "Catalogue | Window",
    documents: NDArray[np.int64],
    places: NDArray[np.integer[Any]],
    config: RunConfig,
    sources: int,
) -> list[int]:
    """By source: cuts through trained turns that the strategy made, of every copy for itself.

    Args:
        documents, places: (cuts,) from `planning.inner_cuts`.
    """
    order = np.argsort(documents, kind="stable")
    documents, places = documents[order], places[order]
    cut = turns_cut(placed, documents, places, mask_of(config))
    return by_source(placed, documents, cut.astype(np.int64), sources)


def by_source(
    placed: "Catalogue | Window", documents: NDArray[np.int64], values: NDArray[Any], sources: int
) -> list[int]:
    """The sum of (K,) values by source of the (K,) documents they belong to."""
    owners = np.array([part.source for part in placed.parts], dtype=np.int64)
    part = np.searchsorted(placed.part_starts, documents, side="right") - 1
    totals = np.zeros(sources, dtype=np.int64)
    np.add.at(totals, owners[part], values)
    out: list[int] = totals.tolist()
    return out
