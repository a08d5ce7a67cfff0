"""Compare two plans key by key: configuration, reading, tokenizer, encoding, versions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import blake3

from ...schemas.config.config import RunConfig
from ..pack.windows import WINDOW_TOKENS

_READING = ("format", "apps", "keys", "style", "expand")
"""Keys of a source that say how to read its rows; `plan["formats"]` has the resulting format."""
_LONG = 200
"""Texts longer than this, such as a reader's module, are shown by their hash."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key that differs."""

    section: str
    """`configuration`, `reading` (how rows of a source are read), `tokenizer`, `encoding` or `versions`."""
    key: str
    a: Any
    """The key's values in the two plans, as plain data; None if the key is missing."""
    b: Any
    spelling: bool = False
    """Whether both values mean the same, so that the difference does not affect any row."""
    whole_source: bool = False
    """Whether the key names a source that only one of the plans has."""


def plan_settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Setting]:
    """List the keys in which two plans, or parts of plans, differ, ordered by section."""
    return [*_configuration(a, b), *_reading(a, b), *_made_with(a, b)]


def flat(data: Any, where: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one, with keys joined by dots. Lists stay; empty mappings disappear."""
    if not isinstance(data, Mapping):
        return {where: data}
    out: dict[str, Any] = {}
    for key, value in data.items():
        out.update(flat(value, f"{where}.{key}" if where else str(key)))
    return out


def _configuration(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Setting]:
    one, other = dict(a.get("config", {})), dict(b.get("config", {}))
    mine, yours = ({source["name"]: source for source in each.pop("sources", [])} for each in (one, other))
    run, source_defaults = _defaults()
    yield from _compared("configuration", flat(one), flat(other), run)
    for name in [*mine, *(name for name in yours if name not in mine)]:
        if name not in mine or name not in yours:
            kinds = [_format(plan, name) if name in held else None for plan, held in ((a, mine), (b, yours))]
            yield Setting("configuration", f"sources.{name}", kinds[0], kinds[1], whole_source=True)
            continue
        resolved = _formats(a).get(name) == _formats(b).get(name)
        weighed = any(source.get("weight") is not None for source in (mine[name], yours[name]))
        sides = [{key: value for key, value in flat(each[name]).items() if key != "name"} for each in (mine, yours)]
        for change in _compared("configuration", sides[0], sides[1], source_defaults):
            said_alike = (resolved and change.key.partition(".")[0] in _READING) or (
                change.key == "repeat" and not weighed and {change.a, change.b} == {None, 1}
            )
            yield Setting("configuration", f"sources.{name}.{change.key}", change.a, change.b, said_alike)
    both = [name for name in mine if name in yours]
    if both != (there := [name for name in yours if name in mine]):
        yield Setting("configuration", "order of the sources", both, there)


def _compared(
    section: str, a: Mapping[str, Any], b: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Iterator[Setting]:
    """Yield the keys whose values differ. Missing keys have their defaults."""
    for key in [*a, *(key for key in b if key not in a)]:
        left, right = a.get(key, defaults.get(key)), b.get(key, defaults.get(key))
        if left != right:
            alike = key == "pack.window_tokens" and {left, right} == {None, WINDOW_TOKENS}
            yield Setting(section, key, _brief(left), _brief(right), alike)


def _reading(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield differences of the resulting formats that the configuration's keys do not explain."""
    for name, mine in _formats(a).items():
        yours = _formats(b).get(name)
        if yours is None or mine == yours:
            continue
        keys = [_reading_keys(plan, name) for plan in (a, b)]
        for change in _compared("reading", flat(mine), flat(yours), {}):
            if keys[0] == keys[1] or change.key == "options.code":
                yield Setting("reading", f"{name}.{change.key.removeprefix('options.')}", change.a, change.b)


def _made_with(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Setting]:
    yield from _compared("tokenizer", flat(a.get("tokenizer", {})), flat(b.get("tokenizer", {})), {})
    asked = [flat(plan.get("config", {}).get("tokenizer", {})) for plan in (a, b)]
    templates = [plan.get("tokenizer", {}).get("template") for plan in (a, b)]
    done = {"tokenizer", *(key for key in ("date", "allow_lost") if asked[0].get(key) != asked[1].get(key))}
    if templates[0] != templates[1] or asked[0] != asked[1]:
        done.add("template")  # follows from the template and its variables
    left, right = ({k: v for k, v in flat(plan.get("encode", {})).items() if k not in done} for plan in (a, b))
    yield from _compared("encoding", left, right, {})
    yield from _compared("versions", flat(a.get("versions", {})), flat(b.get("versions", {})), {})
    files = [[f"{one['file']} {one['hash'][:12]}" for one in _evaluation(plan).get("files", ())] for plan in (a, b)]
    if files[0] != files[1]:
        yield Setting("configuration", "decontaminate.against", files[0] or None, files[1] or None)
    kept = [{key: _evaluation(plan).get(key) for key in ("format", "unicode")} for plan in (a, b)]
    if all(map(_evaluation, (a, b))):
        yield from _compared("versions", flat(kept[0], "evaluation"), flat(kept[1], "evaluation"), {})
    known = {"config", "formats", "tokenizer", "encode", "versions", "inputs", "evaluation"}
    rest = [flat({key: value for key, value in plan.items() if key not in known}) for plan in (a, b)]
    yield from _compared("encoding", rest[0], rest[1], {})


def _evaluation(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    evaluation: Mapping[str, Any] = plan.get("evaluation", {})
    return evaluation


def _formats(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    formats: Mapping[str, Any] = plan.get("formats", {})
    return formats


def _format(plan: Mapping[str, Any], name: str) -> str:
    return str(_formats(plan).get(name, {}).get("format", "a source"))


def _reading_keys(plan: Mapping[str, Any], name: str) -> dict[str, Any]:
    source: Mapping[str, Any] = next(
        (one for one in plan.get("config", {}).get("sources", []) if one["name"] == name), {}
    )
    return {key: source.get(key) for key in _READING}


def _brief(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONG:
        return f"{len(value):,} characters, BLAKE3 {blake3.blake3(value.encode()).hexdigest()[:16]}"
    return value


@cache
def _defaults() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the defaults of the run and of a source, for keys that a plan of an earlier version lacks."""
    whole = RunConfig.model_validate({"out": "x", "tokenizer": {"path": "x"}, "sources": [{"name": "x", "path": "x"}]})
    data = whole.identity()
    (source,) = data.pop("sources")
    return flat(data), flat(source)
