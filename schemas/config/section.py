"""The base class of all parts of the configuration: validated by pydantic, frozen, without unknown keys."""

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler, WithJsonSchema, field_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?(?:([kmgtp])(i?))?b?", re.IGNORECASE | re.ASCII)
LARGEST = 2**63
"""Whole numbers must be below this."""
_LONGEST = 2**22
"""Maximum number of characters of a text. Only with a maximum does pydantic also refuse a half of a surrogate pair,
which cannot be written as UTF-8."""


def parse_size(value: Any) -> Any:
    """Convert a text such as `256MiB`, `1.5 GB` or `4k` to a number of bytes; other values stay unchanged."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value[:40]!r} is not a size; write 256MiB, 2GiB or a number of bytes")
    number, unit, binary = match.groups()
    # `k`, `m`, … are the first, the second, … power of 1,000; `Ki`, `Mi`, … of 1,024. Without a unit, the power 0 is 1.
    power = ("kmgtp".index(unit.lower()) + 1) if unit else 0
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
    """Make a tuple of a single path; other values stay unchanged."""
    return (value,) if isinstance(value, (str, PurePath)) else value


Paths = Annotated[
    tuple[str, ...],
    BeforeValidator(_one_path),
    WithJsonSchema({"type": ["array", "string"], "items": {"type": "string"}, "minItems": 1}),
]
"""Several paths, or one."""


def describe_choices(sentences: Mapping[str, str]) -> str:
    """The values of a key with their sentences: "`bfd`: documents stay whole. `none`: …"."""
    return " ".join(f"`{value}`: {sentence}." for value, sentence in sentences.items())


def alone(key: str, kind: Any) -> BeforeValidator:
    """Let a section be written as a text or a number alone, which is the value of its main key: `mask: assistant` for
    `mask: {policy: assistant}`.

    Args:
        key: the main key, such as `policy`.
        kind: the types of what may be written, for the JSON Schema.
    """

    def make_section(value: Any) -> Any:
        return {key: value} if isinstance(value, (str, int, float)) else value

    return BeforeValidator(make_section, json_schema_input_type=kind)


def _describe_keys(model: type["ConfigModel"], parent: str = "") -> Iterator[str]:
    """The keys of a section, and the keys of sections in it, as in the Args of a docstring:
    `truncate.max_length (default 2048): Maximum length of an example, …`.

    Args:
        parent: the path of the section itself, with a dot at its end; "" at the top.
    """
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        # A section's key often has no sentence of its own: the section has.
        description = field.description or (section.summary if section is not None else "")
        default = "required" if field.is_required() else f"default {field.get_default()!r}"
        # As one paragraph: it was wrapped for the source.
        text = f"{parent}{name} ({default}): {' '.join(description.split())}"
        yield textwrap.fill(text, 112, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
        if section is not None:
            in_list = get_origin(field.annotation) is tuple  # `sources[].name`, of a list of sections
            yield from _describe_keys(section, f"{parent}{name}{'[]' if in_list else ''}.")


def section_of(annotation: Any) -> "type[ConfigModel] | None":
    """The section that a key with this annotation holds, also if it is optional or one of a list; None for a value."""
    # `SplitConfig` alone; or, in its arguments, `ContaminationConfig | None` and `tuple[SourceConfig, ...]`.
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, ConfigModel):
            return kind
    return None


class ConfigModel(BaseModel):
    """A part of the configuration: unknown keys are refused, values are frozen."""

    summary: ClassVar[str] = ""
    """What the section is, as its class says; its `__doc__` also describes its keys."""
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, str_max_length=_LONGEST)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Describe the keys in the docstring, for `help`."""
        cls.summary = inspect.cleandoc(cls.__doc__ or "")
        cls.__doc__ = "\n".join([cls.summary, "", "Keys:", *_describe_keys(cls)])

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON Schema of a section. pydantic would describe it by `__doc__`, with all its keys, and each key once
        more by itself.
        """
        schema = handler.resolve_ref_schema(handler(core_schema))  # the handler may give only a reference to it
        schema["description"] = cls.summary
        return schema

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """What `repr` shows: only keys that were set, because all keys would take pages of a notebook."""
        yield from ((name, getattr(self, name)) for name in type(self).model_fields if name in self.model_fields_set)

    @field_validator("*", mode="after")
    @classmethod
    def _within_64_bits(cls, value: Any) -> Any:
        """Refuse whole numbers of more than 64 bits in any key: arrays cannot hold them, so they would fail later, far
        from the configuration.
        """
        if isinstance(value, int) and not -LARGEST <= value < LARGEST:
            raise ValueError(f"input should be a whole number below {LARGEST:,}")
        return value
