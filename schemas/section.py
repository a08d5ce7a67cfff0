"""What every part of the configuration is: validated by pydantic, frozen, its unknown keys refused."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


def parse_size(value: Any) -> Any:
    """`256MiB`, `2 GiB`, `1e9` or a plain number of bytes, as a number of bytes."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower().removesuffix("b").strip()
    digits = text.rstrip("kmgti").strip()
    unit = text[len(digits) :].strip()
    try:
        size = int(float(digits) * _UNITS[unit])
        if size < 0:
            raise ValueError(value)
        return size
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{value!r} is not a size; write 256MiB, 2GiB or a number of bytes") from None


Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema({"type": ["integer", "string"]})]


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
