"""The position of a loader. It is small, equal on all ranks, and valid for any number of ranks and workers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar, cast, get_origin

from ...schemas.errors import ConfigError

_State = TypeVar("_State")
MOST = 2**63 - 1
"""The largest valid count of rows or tokens."""
FORMAT = 2
ORDER_FIELDS = ("mixture", "seed", "order", "first_epoch_sequential", "balance_block", "balance_group")
"""The fields that decide the order, besides the dataset."""


@dataclass(frozen=True, slots=True)
class LoaderState:
    """Everything needed to resume. Rows are counted over all ranks and epochs, in the canonical order."""

    fingerprint: str
    """Fingerprint of the dataset, or of all datasets of a mixture."""
    mixture: str
    """Fingerprint of a mixture's weights and epochs; empty for one dataset."""
    seed: int
    order: str
    first_epoch_sequential: bool
    balance_block: int
    """Number of rows of a block within which rows are grouped by cost; 0 for no grouping."""
    balance_group: int
    epochs: int
    rows: int
    """Number of rows returned by next(), over all ranks; rows fetched ahead do not count."""
    tokens: int
    """Number of tokens in the returned rows, over all ranks."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "LoaderState":
        """The inverse of `to_dict`.

        Raises:
            ConfigError: the data is from another version, or is not a loader's state.
        """
        return read_state(cls, data, "PackedLoader", FORMAT)

    def refuse_other(self, other: "LoaderState") -> None:
        """Raise ConfigError if `other` has other rows or another order than this state.

        `rows`, `tokens` and `epochs` may differ.
        """
        for name in ("fingerprint", *ORDER_FIELDS):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                what = "the state belongs to another dataset" if name == "fingerprint" else f"{name} differs"
                raise ConfigError(
                    f"{what}: the loader has {mine!r}, the state {theirs!r}. Resuming would repeat some rows and "
                    "leave others out; configure the loader as before, or start again without the state"
                )


def read_state(kind: type[_State], data: Any, of: str, version: int) -> _State:
    """Read a state from untrusted plain data: checks that every field is there, with its type and in range.

    Args:
        kind: a dataclass.
        of: name of the object that the state belongs to, for messages.

    Raises:
        ConfigError: the data is from another version, or not a state of this kind; the message names the field.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"this is not the state of a {of}, but {_shown(data)}; give what its state_dict() returned")
    given = dict(data)
    found = given.pop("format", None)
    if found != version:
        raise ConfigError(
            f"a {of} reads states of format {version}, not {_shown(found)}; resume with the packtrain that wrote it"
        )
    types: dict[str, Any] = {field.name: get_origin(field.type) or field.type for field in fields(cast(Any, kind))}
    if wrong := sorted({*map(str, given)} ^ {*types}):
        what = "has no" if wrong[0] in types else "should have no"
        raise ConfigError(
            f"this is not the state of a {of}: it {what} {_shown(wrong[0])}; give what its state_dict() returned"
        )
    for name, value in given.items():
        good = type(value) is types[name]
        if good and isinstance(value, int) and name != "seed":
            good = 0 <= value <= MOST
        if good and isinstance(value, dict):
            good = all(type(one) is str for pair in value.items() for one in pair)
        if not good:
            wanted = {str: "text", bool: "true or false", dict: "texts by name"}.get(types[name], "a count")
            raise ConfigError(
                f"the state of a {of} has {name}: {_shown(value)}, which should be {wanted}; it is damaged, so resume "
                "from another checkpoint"
            )
    return kind(**given)


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) <= MOST else f"a number of {value.bit_length()} bits"
    return text if len(text) <= 60 else f"{text[:57]}..."
