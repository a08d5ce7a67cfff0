"""Compare two plans key by key: configuration, reading, tokenizer, encoding, versions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...schemas.config.source import AUTO
from ...schemas.fingerprint import hash_bytes

_LONG = 200
"""Texts longer than this, such as a reader's module, are shown by their hash."""
_MADE_WITH = (("tokenizer", "tokenizer"), ("encoding", "encode"), ("versions", "versions"), ("versions", "evaluation"))
"""(section, key of the plan) of what the configuration decides together with the machine."""
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
    config = list(_differing("configuration", _by_name(a, b), _by_name(b, a)))
    names = [[source["name"] for source in plan.get("config", {}).get("sources", [])] for plan in (a, b)]
    both = [[name for name in mine if name in yours] for mine, yours in (names, names[::-1])]
    if both[0] != both[1]:
        config.append(Setting("configuration", "order of the sources", *both))
    files = [
        [f"{one['file']} {one['hash'][:12]}" for one in _part(plan, "evaluation").get("files", ())] for plan in (a, b)
    ]
    if files[0] != files[1]:
        config.append(Setting("configuration", "decontaminate.against", files[0] or None, files[1] or None))
    for name in both[0]:
        reading = _differing("reading", *({name: _part(plan, "formats").get(name, {})} for plan in (a, b)))
        said = any(one.key.startswith(f"sources.{name}.") for one in config)  # what follows from these keys
        config += [one for one in reading if not said or one.key.endswith(".code")]
    for section, key in _MADE_WITH:
        skipped = _SAID_ELSEWHERE if key in ("encode", "evaluation") else ()
        sides = [{one: value for one, value in _part(plan, key).items() if one not in skipped} for plan in (a, b)]
        if all(sides):
            config += _differing(section, *sides)
    return config


def flat(data: Any, where: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one, with keys joined by dots. Lists stay; empty mappings disappear."""
    if not isinstance(data, Mapping):
        return {where: data}
    out: dict[str, Any] = {}
    for key, value in data.items():
        out.update(flat(value, f"{where}.{key}" if where else str(key)))
    return out


def _differing(section: str, a: Any, b: Any) -> Iterator[Setting]:
    left, right = flat(a), flat(b)
    for key in dict.fromkeys([*left, *right]):
        if left.get(key) != right.get(key):
            yield Setting(section, key, _brief(left.get(key)), _brief(right.get(key)))


def _by_name(plan: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with its sources by name; of a source that the other plan lacks, only the format."""
    config, theirs = dict(_part(plan, "config")), [one["name"] for one in _part(other, "config").get("sources", [])]
    sources = {one["name"]: one for one in config.pop("sources", [])}
    for name, source in sources.items():
        format = _part(plan, "formats").get(name, {}).get("format", source["format"])
        if name not in theirs:
            sources[name] = format
        elif format not in (AUTO, "apps"):
            sources[name] = {key: value for key, value in source.items() if key != "apps"}
    return config | {"sources": sources}


def _part(plan: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part: Mapping[str, Any] = plan.get(key, {})
    return part


def _brief(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONG:
        return f"{len(value):,} characters, BLAKE3 {hash_bytes(value.encode())[:16]}"
    return value
