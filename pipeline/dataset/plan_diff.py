"""Compare two plans key by key: configuration, reading, tokenizer, encoding, versions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SECTIONS = {
    "config": "configuration",
    "formats": "reading",
    "tokenizer": "tokenizer",
    "evaluation": "decontaminate.against",
    "encode": "encoding",
    "versions": "versions",
}
"""Part of a plan → what it is called."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key that differs."""

    section: str
    key: str
    a: Any
    """The key's values in the two plans, as plain data; None if the key is missing."""
    b: Any


def plan_settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Setting]:
    """The keys in which two plans, or parts of plans, differ, ordered by section."""
    out = []
    for part in _SECTIONS.keys() & a.keys() & b.keys():
        mine, yours = (flat(_by_name(plan[part])) for plan in (a, b))
        for key in dict.fromkeys([*mine, *yours]):
            if mine.get(key) != yours.get(key):
                out.append(Setting(_SECTIONS[part], key, mine.get(key), yours.get(key)))
    return sorted(out, key=lambda one: list(_SECTIONS.values()).index(one.section))


def _by_name(part: Mapping[str, Any]) -> dict[str, Any]:
    """With sources by their names, and their order."""
    sources = part.get("sources", ())
    order = {"order of the sources": [one["name"] for one in sources]} if sources else {}
    return {**part, **order, "sources": {one["name"]: one for one in sources}}


def flat(data: Any, where: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one, with keys joined by dots. Lists stay; empty mappings disappear."""
    if not isinstance(data, Mapping):
        return {where: data}
    out: dict[str, Any] = {}
    for key, value in data.items():
        out.update(flat(value, f"{where}.{key}" if where else str(key)))
    return out
