"""The tables of docs/configuration.md say what the models say. PACKTRAIN_REWRITE_DOCS=1 rewrites them."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Lt, MinLen
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.config.section import Size, parse_size
from pydantic import BaseModel, BeforeValidator, JsonValue
from pydantic.fields import FieldInfo

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

FIRST, AFTER = "## Top level\n", "## Rules between keys\n"
"""From the one heading to the other, the page is made from the models."""

# Keys whose own value is not hashed, while what stands behind it is.
BEHIND = {
    "tokenizer.path": "content",
    "tokenizer.chat_template": "content",
    "tokenizer.engine": "outcome",
    "tokenizer.trace": "outcome",
    "sources[].path": "content",
    "sources[].split": "content",
    "sources[].subset": "content",
    "contamination.against": "content",
}

SMALLEST = {
    "out": "out",
    "tokenizer": {"path": "tokenizer"},
    "sources": [{"name": "a", "format": "apps", "path": "a.jsonl", "loss_weight": 2.0, "mask": "all"}],
    "loss": {"column": "always"},
    "contamination": {"against": "test.jsonl"},
    "mask": {"thoughts": "mask", "tool_calls": "mask", "stop": "auto"},
    "pack": {"parallel": {"cp": 1, "layout": "ring"}},
}


class Key(NamedTuple):
    """One leaf of the configuration."""

    path: str
    """From the top; `[]` marks an item of a list."""
    field: FieldInfo


def section_of(field: FieldInfo) -> tuple[type[BaseModel] | None, bool]:
    """The model behind a field, if it is a section or a list of them; and whether it is a list."""
    for one in (field.annotation, *get_args(field.annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one, get_origin(field.annotation) is tuple
    return None, False


def sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel], list[Key]]]:
    """Every section with its own leaves, the outer before the inner."""
    inner: list[tuple[str, type[BaseModel]]] = []
    keys: list[Key] = []
    for name, field in model.model_fields.items():
        child, many = section_of(field)
        if child is None:
            keys.append(Key(f"{path}{name}", field))
        else:
            inner.append((f"{path}{name}{'[]' if many else ''}.", child))
    yield path.removesuffix("."), model, keys
    for place, child in inner:
        yield from sections(child, place)


def is_size(field: FieldInfo) -> bool:
    return any(isinstance(item, BeforeValidator) and item.func is parse_size for item in field.metadata)


def typed(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return "size" if annotation == Size else typed(inner[0])
    if origin is Literal:
        return ", ".join(f"`{item}`" for item in inner)
    if origin in (Union, UnionType):
        return " or ".join("null" if item is NoneType else typed(item) for item in inner)
    if origin is tuple:
        return f"list of {typed(inner[0])}"
    if origin is dict:
        return f"mapping of {typed(inner[0])} to {typed(inner[1])}"
    return {str: "text", int: "integer", float: "number", bool: "`true`, `false`", JsonValue: "anything"}[annotation]


def kind(field: FieldInfo) -> str:
    """The type in words, with its limits."""
    words = ["size" if is_size(field) else typed(field.annotation)]
    for item in field.metadata:
        if isinstance(item, Ge):
            words.append(f"at least {sized(item.ge) if is_size(field) else item.ge}")
        elif isinstance(item, Lt):
            words.append(f"below {'2^63' if item.lt == 2**63 else item.lt}")
        elif isinstance(item, MinLen):
            words.append("not empty")
        elif (pattern := getattr(item, "pattern", None)) is not None:
            words.append(f"matching `{pattern}`")
    return ", ".join(words)


def sized(count: Any) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "*needed*"
    value = field.default
    if value is None:
        return "null"
    if is_size(field):
        return f"`{sized(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "`{}`" if value == {} else f"`{value}`"


def identity(path: str) -> str:
    """Whether a key is part of the identity, according to the configuration itself."""
    if path in BEHIND:
        return BEHIND[path]
    here: Any = RunConfig.model_validate(SMALLEST).identity()
    for part in path.replace("[]", ".0").split("."):
        try:
            here = here[int(part) if part.isdigit() else part]
        except KeyError:
            return "no"
    return "yes"


def sentence(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def page(now: str) -> str:
    """The page with the sections that the models call for."""
    out = []
    for path, model, keys in sections(RunConfig):
        out.append(
            f"## {f'`{path}`' if path else 'Top level'}\n\n{sentence(getattr(model, 'summary', '') or model.__doc__)}\n"
        )
        lines = ["| key | type | default | identity | meaning |", "|---|---|---|---|---|"]
        for key in keys:
            name = key.path.removeprefix(f"{path}.")
            pattern = kind(key.field).replace("|", "\\|")
            meaning = sentence(key.field.description)
            lines.append(f"| `{name}` | {pattern} | {default(key.field)} | {identity(key.path)} | {meaning} |")
        out.append("\n".join(lines) + "\n")
    return now[: now.index(FIRST)] + "\n".join(out) + "\n" + now[now.index(AFTER) :]


def test_the_page_says_what_the_models_say() -> None:
    now = PAGE.read_text(encoding="utf-8")
    wanted = page(now)
    if os.environ.get("PACKTRAIN_REWRITE_DOCS"):
        PAGE.write_text(wanted, encoding="utf-8")
        return
    assert now == wanted, "run with PACKTRAIN_REWRITE_DOCS=1 to rewrite the page"


def test_only_where_and_how_fast_bear_no_identity() -> None:
    free = {key.path for _, _, keys in sections(RunConfig) for key in keys if identity(key.path) == "no"}
    run = {"workers", "executor", "shard", "address", "task_seconds", "report"}
    limits = {"max_rejected", "sources[].max_rejected"}  # a run that these end writes nothing
    assert free == {"out", "cache", *limits, *(f"run.{key}" for key in run)}
