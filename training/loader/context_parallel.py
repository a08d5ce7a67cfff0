"""Divides batches among the devices that share a sequence (context parallelism).

A batch is one sequence of T tokens: its rows end to end. Each of the `size` devices of a group holds T / size of them,
and attention exchanges the rest. Document bounds stay those of the whole sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.alignment import Alignment
from ...schemas.config.hints import did_you_mean
from ...schemas.errors import ConfigError, IntegrityError
from ...schemas.parallel import Parallel, ParallelLayout
from ...schemas.ragged import ranges
from ...schemas.rows import IGNORE_INDEX
from ..order.rank import RankInfo, detect_rank
from .collate import Take, fresh


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

    def tokens(self, cu_seq_lens: NDArray[np.int32]) -> NDArray[np.int64]:
        """(T / size,) which tokens of the sequence this device holds, ascending.

        `thd`: every document has 2·size equal chunks, and rank r holds chunks r and 2·size - 1 - r of each, so that
        all have the same causal work (as TransformerEngine's `thd_get_partitioned_indices`). Other layouts: the r-th
        contiguous part of the sequence.

        Args:
            cu_seq_lens: (D + 1,) where documents begin, with padding.

        Raises:
            ValueError: the documents, or the sequence, cannot be divided equally.
        """
        total, parts = int(cu_seq_lens[-1]), 2 * self.size
        if self.layout != "thd":
            if total % self.size:
                raise ValueError(f"{total:,} tokens cannot be divided among {self.size} devices")
            width = total // self.size
            return np.arange(self.rank * width, (self.rank + 1) * width)
        lengths = np.diff(cu_seq_lens).astype(np.int64)
        if (lengths % parts).any():
            raise ValueError(f"a document of {int(lengths[(lengths % parts) > 0][0]):,} tokens has no {parts} chunks")
        chunk = lengths // parts
        begins = np.stack([cu_seq_lens[:-1] + self.rank * chunk, cu_seq_lens[:-1] + (parts - 1 - self.rank) * chunk], 1)
        return ranges(begins.ravel(), np.repeat(chunk, 2))

    def share(self, batch: dict[str, Any], take: Take = fresh) -> dict[str, Any]:
        """This device's part of a batch.

        Tensors with one value per token are divided. `shift_labels` is added: the label of each token's successor,
        which another device may hold; and `shift_loss_weights`, its weight, if there are weights. Everything else
        describes the whole sequence.

        Args:
            take: makes the int64 arrays, for example `Buffers.take`.
        """
        mine = self.tokens(batch["cu_seq_lens_q"].numpy())

        def part(tensor: torch.Tensor, places: NDArray[np.int64]) -> torch.Tensor:
            values = tensor.numpy()[0]
            out = take(len(places)) if values.dtype == np.int64 else np.empty((1, len(places)), values.dtype)
            # numpy is many times as fast here as indexing a tensor; "clip" because "raise" would copy once more
            np.take(values, places, out=out[0], mode="clip")
            return torch.from_numpy(out)

        made = {
            name: part(value, mine) if isinstance(value, torch.Tensor) and value.dim() == 2 else value
            for name, value in batch.items()
        }
        # A document's first label is IGNORE_INDEX, so no token predicts one of another document.
        for name, nothing in (("labels", IGNORE_INDEX), ("loss_weights", 0)):
            if name in batch:
                made[f"shift_{name}"] = shifted = part(batch[name], mine + 1)
                if len(mine) and mine[-1] + 1 == batch[name].shape[1]:  # the sequence's last token, last here too
                    shifted[0, -1] = nothing
        return made
