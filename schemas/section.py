"""What every part of the configuration is: validated by pydantic, frozen, its unknown keys refused."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, field_validator

from . import units

LARGEST = 2**63
"""What every whole number is below."""


def parse_size(value: Any) -> Any:
    """A text as a number of bytes; other values are left to their type."""
    return units.parse_size(value) if isinstance(value, str) else value


def parse_duration(value: Any) -> Any:
    """A text as a number of seconds; other values are left to their type."""
    return units.parse_duration(value) if isinstance(value, str) else value


Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema({"type": ["integer", "string"]})]
"""Bytes: a number, or `256MiB`."""
Duration = Annotated[float, BeforeValidator(parse_duration), WithJsonSchema({"type": ["number", "string"]})]
"""Seconds: a number, or `90s`, `1h30m`."""


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="after")
    @classmethod
    def _within_64_bits(cls, value: Any) -> Any:
        """Arrays hold numbers of 64 bits: a larger one would fail far from where it was written."""
        if isinstance(value, int) and not -LARGEST <= value < LARGEST:
            raise ValueError(f"input should be a whole number below {LARGEST:,}")
        return value
