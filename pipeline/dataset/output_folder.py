"""What an output folder is for: the plan of its run, and how another plan differs from it, key by key."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...schemas.dataset.manifest import Manifest, read_manifest
from ...schemas.dataset.names import PLAN, REJECTS
from ...schemas.errors import IntegrityError, OutputError, StoreError
from ...schemas.escape import escape_line
from ...schemas.jsontext import decode_note, indented_json
from ..inputs.blocks import InputFile
from ..store.local import TEMPORARY, LocalStore, check_tree
from ..store.open_store import Store, ask_all

_SECTIONS = {
    "config": "configuration",
    "formats": "reading",
    "tokenizer": "tokenizer",
    "evaluation": "contamination.against",
    "encode": "encoding",
    "versions": "versions",
    "inputs": "inputs",
}
"""Part of a plan → what a message calls it."""
_LISTED_CHANGES = 20
"""Most differences between two plans that a message lists."""
_NAMED_SOURCES = 8
"""Most names of sources in a line of such a message."""
_ORDER = "order of the sources"
"""The key under which the names of all sources are compared, in their order."""
Figures = dict[str, dict[str, Any]]
"""Section → key → value."""


def check_folder(store: Store) -> None:
    """Refuse a folder that holds something other than an output of packtrain. A folder that is empty, or not there yet,
    passes.

    Raises:
        OutputError: the place is a file, or has content that no run wrote.
        IntegrityError: something in it leads out of it.
    """
    try:
        if isinstance(store, LocalStore):
            # The folder, or if it is not there yet, the one above it in which it would be made.
            nearest = next(path for path in (store.root, *store.root.parents) if path.exists())
            if not nearest.is_dir():
                raise OutputError(f"out: {nearest} is a file; choose a folder")
            if nearest != store.root:
                return
        if store.exists(PLAN) or _holds_manifest(store):
            if isinstance(store, LocalStore):
                check_tree(store.root)
            return
        # No run has claimed the folder. Names are enough to refuse it, and links in somebody else's folder do no harm.
        if isinstance(store, LocalStore):
            names = _names_in(store.root)
        else:
            names = {name.partition("/")[0] for name in store.names()}
        # A run that failed before its claim leaves its lock in `_run`, and perhaps its rejected rows.
        strangers = sorted(names - {"_run", REJECTS})
    except StoreError:  # which is an OSError too, and says already what is wrong
        raise
    except OSError as error:
        raise OutputError(f"out: {store.url} cannot be read: {error.strerror}; choose another folder") from None
    if strangers:
        examples = ", ".join(strangers[:5]) + (", …" if len(strangers) > 5 else "")
        raise OutputError(f"out: {store.url} has other content ({examples}); choose an empty folder, or move it away")


def _names_in(folder: Path) -> set[str]:
    """The names in a folder, without those of packtrain's drafts and of folders in which there is no file. Links are
    names, and are not followed.
    """
    names = set[str]()
    for entry in os.scandir(folder):
        if entry.name.startswith(TEMPORARY):
            continue
        is_file = not entry.is_dir(follow_symlinks=False)
        if is_file or any(files for _, _, files in os.walk(entry.path)):
            names.add(entry.name)
    return names


def _holds_manifest(store: Store) -> bool:
    """Whether there is a manifest by packtrain; other programs use the same file name."""
    try:
        return read_manifest(store) is not None
    except IntegrityError:
        return False


def all_there(store: Store, manifest: Manifest) -> bool:
    """Whether every file in the manifest exists and has the right size. Their contents are not read, which would take
    as long as a run: `packtrain verify` does it.
    """
    return all(ask_all(store, lambda file: store.size(file.name) == file.bytes, manifest.all_files))


def claim(store: Store, plan: dict[str, Any]) -> None:
    """Claim the folder for a plan, unless it is already claimed for the same plan. Removes what a killed run left.

    Raises:
        OutputError: the folder belongs to another configuration or other inputs; the message lists the differences.
    """
    store.sweep()  # drafts of killed runs
    check_plan(store, plan)
    if not store.put_bytes(PLAN, plan_bytes(plan)):
        check_plan(store, plan)  # another run may have put it a moment ago


def check_plan(store: Store, plan: dict[str, Any]) -> None:
    """Refuse a folder of another plan. A folder without a plan passes.

    Args:
        plan: the plan of this run as plain data, or some parts of it, such as `config`. Only these are compared.

    Raises:
        OutputError: the folder has another; the message lists the differences.
    """
    manifest = read_manifest(store)
    # A finished dataset copied without `_run` still has its plan in the manifest.
    stored_plan = manifest.plan if manifest is not None else _read_plan(store)
    stored = {part: stored_plan.get(part) for part in plan}  # None for a part that it lacks
    if not stored_plan or stored == plan:  # no run has claimed the folder, or one with the same plan
        return
    try:
        lines = [f"  {line}" for line in _describe_changes(stored, plan)]
    except (KeyError, TypeError, AttributeError, ValueError):  # a note in a folder may contain anything
        lines = []
    if not lines:
        lines = ["  its settings cannot be read, or are of another version"]
    if len(lines) > _LISTED_CHANGES:
        lines[_LISTED_CHANGES:] = [f"  and {len(lines) - _LISTED_CHANGES} more"]
    listed = "\n".join(lines)
    raise OutputError(
        f"out: {store.url} belongs to another run. Differences (there → here):\n{listed}\n"
        "Choose another folder with --out (encoded parts are reused), or delete this one."
    )


def _describe_changes(stored: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each key that differs; one line for all sources that only one of the two plans has."""
    left = _sources_of(stored)
    right = _sources_of(plan)
    gone = [name for name in left if name not in right]
    added = [name for name in right if name not in left]
    differences = changes(plan_figures(stored), plan_figures(plan))
    if gone or added:
        yield f"sources: {_list_names(left)} → {_list_names(right)}{_describe_renaming(left, right, gone, added)}"
        # Each key of such a source differs, which says no more than that the source is not there.
        prefixes = tuple(f"sources.{name}." for name in (*gone, *added))
        differences = [change for change in differences if change.key != _ORDER and not change.key.startswith(prefixes)]
    yield from (_describe_change(change) for change in differences)


def _sources_of(plan: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The settings of each source, by its name, in their order."""
    return {source["name"]: source for source in plan.get("config", {}).get("sources", ())}


def _list_names(names: Iterable[str]) -> str:
    """Names with commas between them, at most `_NAMED_SOURCES`."""
    listed = [escape_line(name) for name in names]  # a plan that lies in a folder may name them as it likes
    return ", ".join(listed[:_NAMED_SOURCES]) + (", …" if len(listed) > _NAMED_SOURCES else "")


def _describe_renaming(
    left: Mapping[str, Mapping[str, Any]], right: Mapping[str, Mapping[str, Any]], gone: list[str], added: list[str]
) -> str:
    """Say that the only source that is gone and the only one that was added differ in their names alone; "" where they
    do not.

    Args:
        left, right: name → settings of each source, there and here.
        gone, added: names of the sources that only the left side has, and only the right side.
    """
    if len(gone) != 1 or len(added) != 1 or {**left[gone[0]], "name": added[0]} != right[added[0]]:
        return ""
    return " (another name, the same settings)"


def _describe_change(change: "Change") -> str:
    """`configuration truncate.max_length: 128 → 256`, with long values cut."""
    values = [json.dumps(value, ensure_ascii=False)[:60] for value in (change.a, change.b)]
    return f"{change.section} {change.key}: {values[0]} → {values[1]}"


def plan_bytes(plan: dict[str, Any]) -> bytes:
    """The file of a plan."""
    return indented_json(plan, 2)


def _read_plan(store: Store) -> dict[str, Any]:
    """Return the plan that the folder is claimed for; empty if it is not claimed."""
    try:
        return decode_note(store.read(PLAN) or b"{}", dict[str, Any])
    except ValueError as error:
        raise IntegrityError(
            f"{store.where(PLAN)} is damaged ({error}); delete {store.url}, or choose another folder with --out"
        ) from error


def plan_inputs(files: Sequence[InputFile]) -> list[dict[str, Any]]:
    """Return the inputs as the plan lists them: labels, sizes and hashes, without paths."""
    return [{"source": file.source, "file": file.label, "bytes": file.size, "hash": file.hash} for file in files]


# How plans differ


@dataclass(frozen=True, slots=True)
class Change:
    """One key that differs between two plans, or between other figures of two datasets."""

    section: str
    key: str
    a: Any
    """The value of the first one; None if it lacks the key."""
    b: Any
    """The value of the second one; None if it lacks the key."""


def changes(a: Figures, b: Figures) -> list[Change]:
    """The keys that differ in the sections that both have."""
    differences = []
    for section in a:
        if section not in b:
            continue
        left = a[section]
        right = b[section]
        for key in dict.fromkeys([*left, *right]):  # in their order, each once
            if left.get(key) != right.get(key):
                differences.append(Change(section, key, left.get(key), right.get(key)))
    return differences


def plan_figures(plan: Mapping[str, Any]) -> Figures:
    """What a plan, or a part of one, says: name of a section → key with dots → value."""
    return {name: flat(_by_name(plan[part])) for part, name in _SECTIONS.items() if part in plan}


def _by_name(part: Any) -> Mapping[str, Any]:
    """A part of a plan with names in place of numbers in a list: a source that is added then differs by itself, and
    does not shift the others.

    The list of inputs becomes `{"SOURCE/FILE": "SIZE bytes, HASH"}`. The sources of a configuration become `{"sources":
    {NAME: settings}}`, with their order as another key. Other parts stay as they are.
    """
    if isinstance(part, list):
        return {f"{file['source']}/{file['file']}": f"{file['bytes']:,} bytes, {file['hash'][:16]}" for file in part}
    sources = part.get("sources", ())
    order = {_ORDER: [source["name"] for source in sources]} if sources else {}
    return {**part, **order, "sources": {source["name"]: source for source in sources}}


def flat(data: Any, where: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one, with keys joined by dots: `{"a": {"b": 1}}` gives `{"a.b": 1}`. Lists stay;
    empty mappings disappear.
    """
    if not isinstance(data, Mapping):
        return {where: data}
    values: dict[str, Any] = {}
    for key, value in data.items():
        values.update(flat(value, f"{where}.{key}" if where else str(key)))
    return values
