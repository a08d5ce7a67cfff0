"""Determines the state of an output folder: empty, from another run, interrupted, or finished."""

import json
from collections.abc import Sequence
from typing import Any, NoReturn

from ...schemas.config.config import RunConfig
from ...schemas.errors import IntegrityError, OutputError, StoreError
from ...schemas.jsontext import indented_json, parse_json
from ...schemas.manifest import Manifest
from ...schemas.names import PLAN, REJECTS
from ..inputs.blocks import InputFile
from ..store.local import LocalStore, check_tree
from ..store.open_store import Store, ask_all
from .manifests import read_manifest
from .plan_diff import changes, plan_figures


def check_folder(store: Store) -> None:
    """Refuse a folder with other content.

    Raises:
        OutputError: the place is a file, or has content that no run wrote.
        IntegrityError: something in it leads out of it.
    """
    try:
        if isinstance(store, LocalStore):
            check_tree(store.root)
            there = next(path for path in (store.root, *store.root.parents) if path.exists())
            if not there.is_dir():
                raise OutputError(f"out: {there} is a file; choose a folder")
            if there != store.root:
                return
        if store.exists(PLAN) or _holds_manifest(store):
            return
        held = sorted(name for name in store.top() if name not in ("_run", REJECTS))
    except StoreError:
        raise
    except OSError as error:
        raise OutputError(f"out: {store.url} cannot be read: {error.strerror}; choose another folder") from None
    if held:
        some = ", ".join(held[:5]) + (", …" if len(held) > 5 else "")
        raise OutputError(f"out: {store.url} has other content ({some}); choose an empty folder, or move it away")


def _holds_manifest(store: Store) -> bool:
    """Whether there is a manifest by packtrain; other programs use the same file name."""
    try:
        return read_manifest(store) is not None
    except IntegrityError:
        return False


def all_there(store: Store, manifest: Manifest) -> bool:
    """Whether every file in the manifest exists and has the right size. Contents are read only by `packtrain
    verify`.
    """
    sizes = [(file.name, file.bytes) for file in manifest.files]
    for split in manifest.splits.values():
        sizes += [(shard.name, shard.bytes) for shard in split.shards]
    return all(ask_all(store, lambda one: store.size(one[0]) == one[1], sizes))


def claim(store: Store, plan: dict[str, Any]) -> None:
    """Claim the folder for a plan, unless it is already claimed for the same plan. Removes what a killed run left.

    Raises:
        OutputError: the folder belongs to another configuration or other inputs; the message lists the differences.
    """
    store.sweep()
    data, manifest = plan_bytes(plan), read_manifest(store)
    # A finished dataset copied without `_run` still has its plan in the manifest.
    if manifest is None or manifest.plan == plan:
        if store.put_bytes(PLAN, data):
            return
        earlier = _read_plan(store)
    else:
        earlier = manifest.plan
    if earlier != plan:
        _refuse_other(store, earlier, plan)


def check_config(store: Store, config: RunConfig) -> None:
    """Refuse a folder of another configuration before any work; `claim` compares the rest.

    Raises:
        OutputError: the configuration differs; the message lists the differences.
    """
    manifest = read_manifest(store)
    earlier = manifest.plan if manifest is not None else _read_plan(store)
    if earlier:
        now = json.loads(plan_bytes(config.identity()))
        if earlier.get("config") != now:
            _refuse_other(store, {"config": earlier.get("config")}, {"config": now})


def plan_bytes(plan: dict[str, Any]) -> bytes:
    """The file of a plan."""
    return indented_json(plan, 2)


def _read_plan(store: Store) -> dict[str, Any]:
    """Return the plan that the folder is claimed for; empty if it is not claimed."""
    try:
        plan: dict[str, Any] = parse_json(store.read(PLAN) or b"{}")
    except ValueError as error:
        raise IntegrityError(
            f"{store.where(PLAN)} is damaged ({error}); delete {store.url}, or choose another folder with --out"
        ) from error
    return plan


def _refuse_other(store: Store, earlier: dict[str, Any], now: dict[str, Any]) -> NoReturn:
    """Say how a plan, or its configuration, differs from the one that the folder is claimed for."""
    try:
        found = changes(plan_figures(earlier), plan_figures(now))
    except (KeyError, TypeError, AttributeError, ValueError):  # a note in a folder may contain anything
        found = []
    # These differ by themselves only in another environment.
    lines, derived = list[str](), [one for one in found if one.section in ("encoding", "versions")]
    for one in [one for one in found if one not in derived] or derived:
        sides = (json.dumps(side, ensure_ascii=False) for side in (one.a, one.b))
        lines.append(f"{one.section} {one.key}: " + " → ".join(text[:60] for text in sides))
    shown = "\n".join(f"  {line}" for line in lines[:20] or ["its settings cannot be read, or are of another version"])
    more = f"\n  and {len(lines) - 20} more" if len(lines) > 20 else ""
    raise OutputError(
        f"out: {store.url} belongs to another run. Differences (there → here):\n{shown}{more}\n"
        "Choose another folder with --out (encoded parts are reused), or delete this one."
    )


def plan_inputs(files: Sequence[InputFile]) -> list[dict[str, Any]]:
    """Return the inputs as the plan lists them: labels, sizes and hashes, without paths."""
    return [{"source": file.source, "file": file.label, "bytes": file.size, "hash": file.hash} for file in files]
