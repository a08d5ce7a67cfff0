"""Divides batches among the devices that share a sequence (context parallelism).

A batch is one sequence of T tokens: its rows end to end. Each of the `size` devices of a group holds T / size of them,
and attention exchanges the rest. Document bounds stay those of the whole sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ...schemas.alignment import Alignment
from ...schemas.config.hints import did_you_mean
from ...schemas.errors import ConfigError, IntegrityError
from ...schemas.parallel import Parallel, ParallelLayout
from ...schemas.ragged import lengths_of, offsets_of, ranges
from ...schemas.rows import IGNORE_INDEX
from ..order.rank import RankInfo, detect_rank


def context_places(
    rank: int | None, world_size: int | None, cp_rank: int | None, cp_size: int
) -> tuple[RankInfo, RankInfo]:
    """Return the data-parallel rank, and the rank within the context-parallel group.

    Args:
        rank, world_size: of data parallelism; None finds the process's rank among all, of which `cp_size` neighbours
            are one group, as in Megatron and in `init_device_mesh` with context parallelism last.

    Raises:
        ConfigError: the ranks cannot be divided into groups, or only some of the numbers are given.
    """
    for name, value in (("cp_size", cp_size), ("cp_rank", cp_rank)):
        if value is not None and not isinstance(value, int):
            raise ConfigError(f"{name}={value!r}: give a whole number")
    if cp_size < 1:
        raise ConfigError(f"cp_size={cp_size}: must be at least 1")
    found = detect_rank(rank, world_size)
    if cp_rank is None and rank is None:
        if found.world_size % cp_size:
            raise ConfigError(
                f"cp_size={cp_size} does not divide the {found.world_size:,} ranks ({found.origin}): every group needs "
                "as many; take another cp_size, or give rank, world_size and cp_rank"
            )
        groups = RankInfo(found.rank // cp_size, found.world_size // cp_size, found.origin)
        return groups, RankInfo(found.rank % cp_size, cp_size, found.origin)
    if (cp_rank is None and cp_size > 1) or rank is None:
        raise ConfigError(
            "give rank, world_size and cp_rank together (rank and world_size without the devices of a group), or none "
            "of the three"
        )
    return found, RankInfo(cp_rank or 0, cp_size, "given")


@dataclass(frozen=True, slots=True)
class ContextPart:
    """The part of every batch that one device of a group holds."""

    rank: int
    size: int
    layout: ParallelLayout

    @classmethod
    def of(cls, place: RankInfo, layout: str | None, packs: Sequence[Mapping[str, Any]]) -> "ContextPart | None":
        """The part of a rank; None if it is the only one of its group.

        Args:
            layout: None takes the one that the data were packed for.
            packs: the section `pack` of each dataset's configuration.

        Raises:
            ConfigError: a dataset's rows cannot be divided in this way.
        """
        if place.world_size == 1:
            if layout is not None:
                raise ConfigError(
                    f"cp_layout={layout!r} without cp_size: give the number of devices that share a batch, or leave "
                    "cp_layout out"
                )
            return None
        if layout is None:
            layouts = {(pack.get("parallel") or {}).get("layout") for pack in packs}
            layout = layouts.pop() if len(layouts) == 1 else None
            if layout is None:
                raise ConfigError(
                    "cp_layout: the data were not packed for one layout (pack.parallel); take "
                    f"{' or '.join(get_args(ParallelLayout))}, as your attention needs it"
                )
        if layout not in get_args(ParallelLayout):
            known = get_args(ParallelLayout)
            raise ConfigError(f"cp_layout={layout!r}: choose {', '.join(known)}{did_you_mean(layout, known)}")
        part = cls(place.rank, place.world_size, layout)  # type: ignore[arg-type]  # checked above
        for pack in packs:
            part._refuse_unfit(pack)
        return part

    def _refuse_unfit(self, pack: Mapping[str, Any]) -> None:
        own = pack.get("parallel")
        try:
            padded = Alignment.of(int(pack["align"]), None if own is None else Parallel.from_json(own))
        except (KeyError, TypeError, ValueError) as error:
            raise IntegrityError(
                "the manifest's section `pack` is damaged; packtrain verify says where, packtrain run makes it again"
            ) from error
        wanted = Parallel(self.size, 1, self.layout)
        if padded.document % wanted.document_multiple or padded.row % wanted.row_multiple:
            what = "documents" if self.layout == "thd" else "rows"
            multiple = max(wanted.document_multiple, wanted.row_multiple)
            raise ConfigError(
                f"cp_size={self.size}, cp_layout={self.layout!r}: {what} must be padded to multiples of {multiple}, "
                f"and this dataset's are not; pack again with pack.parallel: {{cp: {self.size}, layout: {self.layout}}}"
            )

    def tokens(self, cu_seq_lens: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """(T / size,) which tokens of the sequence this device holds, ascending.

        `thd`: every document has 2·size equal chunks, and rank r holds chunks r and 2·size - 1 - r of each, so that
        all have the same causal work (as TransformerEngine's `thd_get_partitioned_indices`). Other layouts: the r-th
        contiguous part of the sequence.

        Args:
            cu_seq_lens: (D + 1,) where documents begin, with padding.

        Raises:
            ValueError: the documents, or the sequence, cannot be divided equally.
        """
        return self._places(cu_seq_lens, cu_seq_lens[[0, -1]])

    def held(
        self, columns: dict[str, list[NDArray[Any]]], lengths: NDArray[np.int32], ends: list[int]
    ) -> tuple[dict[str, list[NDArray[Any]]], list[int]]:
        """This device's tokens of several sequences that lie end to end, and where its part of each sequence ends.

        `shift_labels` is added: the label of each token's successor, which another device may hold; and
        `shift_loss_weights`, its weight, if there are weights.

        Args:
            columns: name → arrays that lie end to end, with one value per token. Every array ends with a document.
            lengths: (D,) tokens of each document.
            ends: where each sequence begins, and the last one ends.

        Raises:
            ValueError: see `tokens`.
        """
        edges = offsets_of(lengths_of(columns["labels"]))
        places = self._places(offsets_of(lengths), np.array(ends))
        pieces = np.split(places, np.searchsorted(places, edges[1:-1]))
        parts = [piece - edge for piece, edge in zip(pieces, edges[:-1].tolist(), strict=True)]
        found = {
            # numpy's `take` is twice as fast as indexing; "clip" saves its check
            name: [np.take(array, part, mode="clip") for array, part in zip(arrays, parts, strict=True)]
            for name, arrays in columns.items()
        }
        # A document's first label is IGNORE_INDEX, so no token predicts one of another document.
        for name, nothing in (("labels", IGNORE_INDEX), ("loss_weights", 0)):
            if name in columns:
                found[f"shift_{name}"] = [
                    _after(array, part, nothing) for array, part in zip(columns[name], parts, strict=True)
                ]
        return found, [end // self.size for end in ends]

    def _places(self, documents: NDArray[np.integer[Any]], sequences: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Which tokens this device holds, from where documents and sequences begin and the last one ends."""
        thd = self.layout == "thd"
        bounds, parts = (documents, 2 * self.size) if thd else (sequences, self.size)
        lengths = np.diff(bounds).astype(np.int64)
        chunks, rest = lengths // parts, lengths % parts
        if rest.any():
            what = "document" if thd else "sequence"
            raise ValueError(f"a {what} of {int(lengths[rest > 0][0]):,} tokens cannot be divided into {parts} chunks")
        mine = [self.rank, parts - 1 - self.rank] if thd else [self.rank]
        begins = bounds[:-1, None] + chunks[:, None] * np.array(mine)
        return ranges(begins.ravel(), np.repeat(chunks, len(mine)))


def _after(array: NDArray[Any], places: NDArray[np.int64], nothing: int) -> NDArray[Any]:
    """The successors of these places; `nothing` after the last."""
    found = np.take(array, places + 1, mode="clip")
    if len(places) and places[-1] + 1 == len(array):
        found[-1] = nothing
    return found
