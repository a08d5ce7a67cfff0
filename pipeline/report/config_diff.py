"""What two plans ask for, key by key: configuration, reading, tokenizer, encoding, versions."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import blake3

from ...schemas.config import RunConfig
from ...schemas.manifest import Manifest
from ..windows import WINDOW_TOKENS
from .changes import Setting

_READING = ("format", "apps", "keys", "style", "expand")
"""Keys of a source that say how its rows are read; `plan["formats"]` holds what they come to."""
_LONG = 200
"""Characters of a text above which its hash stands for it: a reader's module, say."""


def settings(a: Manifest, b: Manifest) -> list[Setting]:
    """Every key in which the plans of two datasets differ, in the order of their sections."""
    return plan_settings(a.plan, b.plan)


def plan_settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Setting]:
    """The same of two plans, or of parts of them."""
    return [*_configuration(a, b), *_reading(a, b), *_made_with(a, b)]


def flat(data: Any, where: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined by dots. Lists stay as they are; an empty mapping leaves nothing."""
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
    """Keys whose values differ. A key that one side lacks has its default there."""
    for key in [*a, *(key for key in b if key not in a)]:
        left, right = a.get(key, defaults.get(key)), b.get(key, defaults.get(key))
        if left != right:
            alike = key == "pack.window_tokens" and {left, right} == {None, WINDOW_TOKENS}
            yield Setting(section, key, _brief(left), _brief(right), alike)


def _reading(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Setting]:
    """What formats come to, where the configuration's own keys do not tell."""
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
    told = {"tokenizer", *(key for key in ("date", "on_limit", "allow_lost") if asked[0].get(key) != asked[1].get(key))}
    if templates[0] != templates[1] or asked[0] != asked[1]:
        told.add("template")  # of the template and its variables
    left, right = ({k: v for k, v in flat(plan.get("encode", {})).items() if k not in told} for plan in (a, b))
    yield from _compared("encoding", left, right, {})
    yield from _compared("versions", flat(a.get("versions", {})), flat(b.get("versions", {})), {})
    known = {"config", "formats", "tokenizer", "encode", "versions", "inputs"}
    rest = [flat({key: value for key, value in plan.items() if key not in known}) for plan in (a, b)]
    yield from _compared("encoding", rest[0], rest[1], {})


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
    """Of the run, and of a source: what a plan of an earlier version, which lacks a key, means."""
    whole = RunConfig.model_validate({"out": "x", "tokenizer": {"path": "x"}, "sources": [{"name": "x", "path": "x"}]})
    data = whole.identity()
    (source,) = data.pop("sources")
    return flat(data), flat(source)
