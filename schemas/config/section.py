"""The base class of all parts of the configuration: validated by pydantic, frozen, without unknown keys."""

import re
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, field_validator

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?(?:([kmgtp])(i?))?b?", re.IGNORECASE | re.ASCII)
LARGEST = 2**63
"""Whole numbers must be below this."""
_LONGEST = 2**22
"""Maximum number of characters of a text. With a maximum, pydantic also refuses halves of characters."""


def parse_size(value: Any) -> Any:
    """Convert a text such as `256MiB`, `1.5 GB` or `4k` to a number of bytes; other values stay unchanged."""
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise ValueError(f"{value[:40]!r} is not a size; write 256MiB, 2GiB or a number of bytes")
    number, unit, binary = found.groups()
    power = "kmgtp".index(unit.lower()) + 1 if unit else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


def parse_share(value: Any) -> Any:
    """Convert a text such as `2%` to a share of 1; other values stay unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{value[:40]!r} is not a share; write 0.02 or 2%") from None


Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema({"type": ["integer", "string"]})]
"""Bytes: a number, or `256MiB`."""
Share = Annotated[float, BeforeValidator(parse_share), WithJsonSchema({"type": ["number", "string"]})]
"""A share of 1: a number, or `2%`."""


def _one_path(value: Any) -> Any:
    return (value,) if isinstance(value, (str, PurePath)) else value


Paths = Annotated[
    tuple[str, ...],
    BeforeValidator(_one_path),
    WithJsonSchema({"type": ["array", "string"], "items": {"type": "string"}, "minItems": 1}),
]
"""Several paths, or one."""


def alone(key: str, kind: Any) -> BeforeValidator:
    """Take a text or a number in place of a section as the value of its main key: `mask: assistant`, `holdout: 2%`.

    Args:
        kind: what may be written, for the JSON Schema.
    """

    def whole(value: Any) -> Any:
        return {key: value} if isinstance(value, (str, int, float)) else value

    return BeforeValidator(whole, json_schema_input_type=kind)


class ConfigModel(BaseModel):
    """A part of the configuration: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, str_max_length=_LONGEST)

    @field_validator("*", mode="after")
    @classmethod
    def _within_64_bits(cls, value: Any) -> Any:
        """Arrays hold 64-bit numbers; a larger one would fail later, far from the configuration."""
        if isinstance(value, int) and not -LARGEST <= value < LARGEST:
            raise ValueError(f"input should be a whole number below {LARGEST:,}")
        return value
