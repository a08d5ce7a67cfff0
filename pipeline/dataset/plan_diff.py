"""Compares what two plans, or two manifests, say, key by key."""

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
    "inputs": "inputs",
}
"""Part of a plan → what it is called."""
Figures = dict[str, dict[str, Any]]
"""Section → key → value."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key that differs; None where a side lacks it."""

    section: str
    key: str
    a: Any
    b: Any


def changes(a: Figures, b: Figures) -> list[Change]:
    """The keys that differ in the sections that both have."""
    return [
        Change(section, key, mine.get(key), yours.get(key))
        for section, mine, yours in ((section, a[section], b[section]) for section in a if section in b)
        for key in dict.fromkeys([*mine, *yours])
        if mine.get(key) != yours.get(key)
    ]


def plan_figures(plan: Mapping[str, Any]) -> Figures:
    """What a plan, or a part of one, says."""
    return {name: flat(_by_name(plan[part])) for part, name in _SECTIONS.items() if part in plan}


def _by_name(part: Any) -> Mapping[str, Any]:
    """Inputs by source and file; and sources by their names, with their order."""
    if isinstance(part, list):
        return {f"{one['source']}/{one['file']}": f"{one['bytes']:,} bytes, {one['hash'][:16]}" for one in part}
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
