"""What is wrong with a configuration, in words: the file, the line, the key, and what would be valid."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ..schemas.config.section import ConfigModel, section_of
from ..schemas.errors import did_you_mean

Place = tuple[Any, ...]
"""Keys and indexes that lead to a value, such as `("sources", 0, "path")`."""
_SHOWN_CHARACTERS = 80
"""Most characters of a wrong value that a message repeats."""
_LISTED_MISTAKES = 20
"""Most mistakes that a message lists."""


def describe_errors(
    error: ValidationError, where: str, data: Any, origins: Mapping[Place, str], model: type[ConfigModel]
) -> str:
    """Write pydantic's errors, one a line: file and line or override, key, what is wrong, what would be valid.

    Args:
        where: the file, for messages.
        data: what was validated: the file's content, with all overrides.
        origins: place → what set it: `line 3` of the file, or an override such as `--set seed=x`.
        model: what the configuration should be.
    """
    # (place in the data, pydantic's error) of each mistake
    mistakes: list[tuple[Place, ErrorDetails]] = []
    for details in error.errors():
        place = _place_in_data(details["loc"], data, missing=details["type"] == "missing")
        mistakes.append((place, details))
    # Beginning of a line, such as `mix.yaml, line 3: seed` → what is wrong there.
    problems: dict[str, list[str]] = {}
    # Unknown keys share a line: a file of another tool has dozens.
    unknown_keys = [place for place, details in mistakes if details["type"] == "extra_forbidden"]
    if unknown_keys:
        problems[where] = [_describe_unknown_keys(unknown_keys, model, origins)]
    for place, details in mistakes:
        kind = details["type"]
        if kind == "extra_forbidden":
            continue
        # pydantic does not count the items of a list that have mistakes themselves, and then calls the list too short.
        has_mistakes_inside = any(len(other) > len(place) and other[: len(place)] == place for other, _ in mistakes)
        if kind == "too_short" and has_mistakes_inside:
            continue
        problem = (
            "is required but missing"
            if kind == "missing"
            else _describe_value(details, known_keys=_fields(model, place))
        )
        # A value that may have several types has an error of each, and often in the same words.
        problems_here = problems.setdefault(_describe_place(place, where, origins), [])
        if problem not in problems_here:
            problems_here.append(problem)
    lines = [f"{place}: {'; or '.join(problems_here)}" for place, problems_here in problems.items()]
    if len(lines) > _LISTED_MISTAKES:
        return "\n".join([*lines[:_LISTED_MISTAKES], f"and {len(lines) - _LISTED_MISTAKES:,} more"])
    return "\n".join(lines)


def _describe_place(place: Place, where: str, origins: Mapping[Place, str]) -> str:
    """Where a mistake is: `mix.yaml, line 3: pack.row_length`, `--set seed=x: seed`, or `--max-length 0`.

    Args:
        where: the file.
        origins: place → what set it: `line 3` of the file, `--set seed=x`, an option of its own such as
            `--max-length 0`, or `overrides['seed']` of a function.
    """
    origin = _origin_of(place, origins)
    if origin.startswith("--set"):
        begin = origin  # the file has nothing to do with it
    elif origin.startswith("--"):
        return origin  # an option such as --max-length says which key it is
    else:  # a line of the file, or `overrides['seed']` of a function; "" if nothing is known
        begin = f"{where}, {origin}" if origin else where
    key = ".".join(map(str, place))
    return f"{begin}: {key}" if key else begin


def _origin_of(place: Place, origins: Mapping[Place, str]) -> str:
    """What set the key at a place, or the nearest section above it; "" if that is unknown, as for a missing key at the
    top.
    """
    for length in range(len(place), 0, -1):
        if place[:length] in origins:
            return origins[place[:length]]
    return ""


def _describe_unknown_keys(places: Sequence[Place], model: type[ConfigModel], origins: Mapping[Place, str]) -> str:
    """One sentence about all unknown keys: `there are no such keys: max_len (line 3; did you mean max_length?), …`"""
    is_only_one = len(places) == 1
    listed = ", ".join(
        _describe_unknown_key(place, model, origins, is_only_one=is_only_one) for place in places[:_LISTED_MISTAKES]
    )
    if len(places) > _LISTED_MISTAKES:
        listed += f" and {len(places) - _LISTED_MISTAKES:,} more"
    return f"{'there is no such key' if is_only_one else 'there are no such keys'}: {listed}"


def _describe_unknown_key(
    place: Place, model: type[ConfigModel], origins: Mapping[Place, str], *, is_only_one: bool
) -> str:
    """An unknown key, where it is, and the key that is likely meant.

    Args:
        is_only_one: whether it is the only unknown key. Then there is room to list the keys of its section, if none of
            them resembles it.
    """
    known_keys = _fields(model, place[:-1])
    name = str(place[-1])
    # In any section: `max_length` or `maxLength` at the top means `truncate.max_length`.
    keys_of_this_name = [key for key in all_keys(model) if _spelling(key.rpartition(".")[2]) == _spelling(name)]
    # In its own section, with a typing error. `did_you_mean` gives "; did you mean max_length?", or "" if none is
    # close.
    advice = did_you_mean(name, known_keys).removeprefix("; ")
    if keys_of_this_name:
        advice = f"did you mean {' or '.join(keys_of_this_name)}?"
    elif not advice and is_only_one:
        advice = f"known keys: {', '.join(known_keys)}"
    key = ".".join(map(str, place))
    details = "; ".join(filter(None, (origins.get(place, ""), advice)))
    return f"{key} ({details})" if details else key


def _place_in_data(location: Place, data: Any, missing: bool) -> Place:
    """Where an error is in the data: pydantic's location without names of classes and types, which the data lacks.

    `("mask", "MaskConfig", "policy")` becomes `("mask", "policy")`, for `mask: {policy: x}`.

    Args:
        location: pydantic's.
        missing: whether the last part of the location is a key that the data should have, and lacks.
    """
    place: list[Any] = []
    for part in location:
        is_key = isinstance(data, Mapping) and part in data
        is_index = isinstance(data, (list, tuple)) and type(part) is int and part < len(data)
        if is_key or is_index:
            place.append(part)
            data = data[part]
    if missing:  # the data lacks this key, so the loop has left it out
        place.append(location[-1])
    return tuple(place)


def _describe_value(error: ErrorDetails, known_keys: Sequence[str]) -> str:
    """What is wrong with a value: `input should be 'bfd' or 'tight' (got 'tigt'); did you mean 'tight'?`

    Args:
        error: an error of pydantic. Its sentence is meant for people who write Python, and is reworded for YAML.
        known_keys: the keys that the value may have, if it should be a section; otherwise empty.
    """
    value = error["input"]
    if error["type"] in ("model_type", "model_attributes_type"):
        # pydantic's sentence names the class of the section, which no user knows.
        sentence = f"input should be keys with values, such as `{{{known_keys[0]}: …}}`"
    elif error["type"] == "string_unicode":
        sentence = "input should be text, but has half of a character (\\ud800 to \\udfff)"
    else:
        sentence = error["msg"].removeprefix("Value error, ")  # what pydantic puts before errors of our own checks
        # A list of YAML becomes a tuple, because configurations are frozen.
        sentence = sentence.replace("valid tuple", "list").replace("Tuple should", "list should")
        sentence = sentence[:1].lower() + sentence[1:]  # it stands behind a key and a colon
    # A section or a list would fill the line.
    shown_value = show(value)
    if not isinstance(value, (dict, list)) and shown_value not in sentence:
        sentence += f" (got {shown_value})"
    # Of a value that must be one of some texts, pydantic gives these as one text: `'bfd', 'tight' or 'none'`.
    choices = error.get("ctx", {}).get("expected")
    if isinstance(value, str) and isinstance(choices, str):
        sentence += did_you_mean(value, re.findall(r"'([^']*)'", choices))
    return sentence


def _fields(model: type[ConfigModel], place: Place) -> list[str]:
    """The keys that the section at a place of the configuration may have; none for a place that is no section."""
    section = model
    for part in place:
        if isinstance(part, int):  # which section of a list, all of which have the same keys
            continue
        field = section.model_fields.get(part)
        inner_section = section_of(field.annotation) if field is not None else None
        if inner_section is None:
            return []
        section = inner_section
    return list(section.model_fields)


def _spelling(name: str) -> str:
    """A key without what people write in different ways: `max_length`, `max-length` and `maxLength` are equal."""
    return name.lower().replace("_", "").replace("-", "")


def all_keys(model: type[ConfigModel], parent: str = "") -> Iterator[str]:
    """The keys of a configuration and of its sections as paths, such as `truncate.max_length`. Of a list of sections,
    only the keys of the first are given, such as `sources.0.path`.

    Args:
        parent: the path of the model itself, with a dot at its end; "" at the top.
    """
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None:
            yield f"{parent}{name}"
        else:
            # Lists of sections are tuples, because configurations are frozen.
            first_of_list = "0." if get_origin(field.annotation) is tuple else ""
            yield from all_keys(section, f"{parent}{name}.{first_of_list}")


def show(value: Any) -> str:
    """Write a value for a message, at most `_SHOWN_CHARACTERS` long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write numbers of more than 4,300 digits, but YAML reads them in hexadecimal
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
