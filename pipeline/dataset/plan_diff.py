"""Compare two plans key by key: configuration, reading, tokenizer, encoding, versions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...schemas.fingerprint import hash_bytes

_LONG = 200
"""Texts longer than this, such as a reader's module, are shown by their hash."""
_SAID_ELSEWHERE = ("tokenizer", "date", "allow_lost", "template", "files", "counts", "ngram")
"""Keys of `encode` and `evaluation` that follow from the configuration, the tokenizer and the evaluation files."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key that differs."""

    section: str
    """`configuration`, `reading` (how rows of a source are read), `tokenizer`, `encoding` or `versions`."""
    key: str
    a: Any
    """The key's values in the two plans, as plain data; None if the key is missing."""
    b: Any


def plan_settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Setting]:
    """List the keys in which two plans, or parts of plans, differ, ordered by section."""
    names = [[one["name"] for one in plan.get("config", {}).get("sources", ())] for plan in (a, b)]
    both = [name for name in names[0] if name in names[1]]
    left, right = _sections(a, both), _sections(b, both)
    out = []
    for section in left.keys() & right.keys():
        mine, yours = flat(left[section]), flat(right[section])
        for key in dict.fromkeys([*mine, *yours]):
            if mine.get(key) != yours.get(key):
                out.append(Setting(section, key, _brief(mine.get(key)), _brief(yours.get(key))))
    changed = {one.key.rpartition(".")[0] for one in out if one.section == "configuration"}
    # How a source is read follows from its own keys, but for the code of a reader.
    out = [
        one
        for one in out
        if one.section != "reading"
        or one.key.endswith(".code")
        or f"sources.{one.key.partition('.')[0]}" not in changed
    ]
    return sorted(
        out, key=lambda one: ("configuration", "reading", "tokenizer", "encoding", "versions").index(one.section)
    )


def _sections(plan: Mapping[str, Any], both: list[str]) -> dict[str, dict[str, Any]]:
    """The settings of a plan, by section; only those that it has.

    Args:
        both: the sources that the other plan has too; of another one, only the format counts.
    """
    config, formats = dict(plan.get("config", {})), plan.get("formats", {})
    sources = {one["name"]: one for one in config.pop("sources", ())}
    config["order of the sources"] = [name for name in sources if name in both]
    config["sources"] = {
        name: one if name in both else formats.get(name, one)["format"] for name, one in sources.items()
    }
    evaluation = plan.get("evaluation", {})
    if files := [f"{one['file']} {one['hash'][:12]}" for one in evaluation.get("files", ())]:
        config["decontaminate.against"] = files
    made = {**plan.get("encode", {})}, {**plan.get("versions", {}), **evaluation}
    encode, versions = ({key: one for key, one in part.items() if key not in _SAID_ELSEWHERE} for part in made)
    out = {
        "configuration": config,
        "reading": {name: one for name, one in formats.items() if name in both},
        "tokenizer": dict(plan.get("tokenizer", {})),
        "encoding": encode,
        "versions": versions,
    }
    return {section: part for section, part in out.items() if part}


def flat(data: Any, where: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one, with keys joined by dots. Lists stay; empty mappings disappear."""
    if not isinstance(data, Mapping):
        return {where: data}
    out: dict[str, Any] = {}
    for key, value in data.items():
        out.update(flat(value, f"{where}.{key}" if where else str(key)))
    return out


def _brief(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONG:
        return f"{len(value):,} characters, BLAKE3 {hash_bytes(value.encode())[:16]}"
    return value
