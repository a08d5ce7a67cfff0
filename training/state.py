"""Where a loader stands: small, equal on all ranks, good for any number of ranks and workers."""

from dataclasses import asdict, dataclass
from typing import Any

from ..schemas.errors import ConfigError

FORMAT = 2
ORDER_FIELDS = ("mixture", "seed", "order", "first_epoch_sequential", "balance_block", "balance_group")
"""What decides, beside the dataset, which row stands where."""


@dataclass(frozen=True, slots=True)
class LoaderState:
    """What resuming needs. Rows are counted over all ranks and epochs, in the canonical order."""

    fingerprint: str
    """Of the dataset, or of all datasets of a mixture."""
    mixture: str
    """Of weights and epochs of a mixture; empty for one dataset."""
    seed: int
    order: str
    first_epoch_sequential: bool
    balance_block: int
    """Rows of a block in which rows of like cost lie together; 0 for none."""
    balance_group: int
    epochs: int
    rows: int
    """Rows handed out, by all ranks together: returned by next(), not merely fetched ahead."""
    tokens: int
    """Tokens of those rows, over all ranks."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "LoaderState":
        """The inverse of `to_dict`.

        Raises:
            ConfigError: it is of another version, or not a loader's state.
        """
        data = dict(data)
        version = data.pop("format", None)
        if version != FORMAT:
            raise ConfigError(
                f"this loader reads states of format {FORMAT}, not {version!r}; resume with the packtrain that wrote it"
            )
        try:
            return cls(**data)
        except TypeError as error:
            raise ConfigError(
                f"this is not the state of a PackedLoader: {error}; give what its state_dict() returned"
            ) from None

    def refuse_other(self, other: "LoaderState") -> None:
        """Raise ConfigError when `other` would read other rows in another order than this state.

        `rows` and `tokens` may differ: they are what resuming is about. So may `epochs`.
        """
        for name in ("fingerprint", *ORDER_FIELDS):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                what = "the state is of another dataset" if name == "fingerprint" else f"{name} differs"
                raise ConfigError(
                    f"{what}: the loader has {mine!r}, the state {theirs!r}. Resuming would repeat some rows and "
                    "leave others out; make the loader as it was, or start anew without the state"
                )
