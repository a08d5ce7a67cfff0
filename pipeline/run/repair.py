"""Repair a finished dataset: forget its damaged files, and run its configuration again.

A run makes only what has no finished file, so the other files are left alone. It writes the manifest that is there, or
says that what it made does not match it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...schemas.config.config import RunSection
from ...schemas.errors import ConfigError, InputError, IntegrityError
from ...schemas.manifest import Manifest
from ...schemas.names import MANIFEST, PLAN
from ..configfile import load_config
from ..dataset.manifests import open_output, read_manifest
from ..dataset.output_folder import check_config, claim, restore_plan
from ..dataset.run_notes import RUN, RunOrigin, recall, refuse_noted
from ..dataset.verify import Finding, verify
from ..observer import Observer, Silent
from ..store.local import LocalStore
from ..store.open_store import Store, cache_root
from .run import make_dataset
from .workers import open_workspace

_SHARD = re.compile(r"(.*/)?shards/\d{5,}-[0-9a-f]{16}\.(arrow|parquet)")


@dataclass(frozen=True, slots=True)
class Repair:
    """What was wrong with a dataset, and what repair did about it."""

    findings: tuple[Finding, ...]
    """What was wrong before the repair."""
    rebuilt: tuple[str, ...]
    """Names of rebuilt files."""
    removed: tuple[str, ...]
    """Names of removed shards that the manifest does not list."""
    kept: int
    """Number of undamaged files, which were left alone."""
    remaining: tuple[Finding, ...]
    """What is still wrong and cannot be fixed by rebuilding files."""
    manifest: Manifest

    @property
    def sound(self) -> bool:
        """Whether the dataset has no findings now."""
        return not self.remaining


def repair(
    folder: str | Path,
    *,
    config: "Mapping[str, Any] | str | Path | None" = None,
    base: Path | None = None,
    observer: Observer | None = None,
) -> Repair:
    """Rebuild the damaged or missing files of a finished dataset. Its inputs must still be there.

    Args:
        folder: a finished dataset, or its URL.
        config: the run's configuration, which says where its inputs are now; by default the one in the run's notes.
        base: where relative paths of `config` start.

    Raises:
        InputError: there is no finished dataset.
        ConfigError: inputs are gone; or `config` is needed, because the run's notes are missing, or name code to run or
            URLs to fetch.
        OutputError: the inputs have changed, or `config` belongs to another run.
        IntegrityError: the rebuilt files do not match the manifest; or a name in the folder points outside it.
    """
    observer = observer or Silent()
    out = open_output(folder)
    if isinstance(out, LocalStore) and out.root.is_file():
        raise InputError(f"{folder} is a file; give the folder that `packtrain run` wrote")
    if (data := out.read(MANIFEST)) is None:
        raise InputError(
            f"{out.url} has no {MANIFEST}, so there is no finished dataset to repair. If a run was interrupted, or "
            "the file deleted, run the same configuration again: it continues where it stopped"
        )
    try:
        manifest = read_manifest(out)
    except IntegrityError:
        manifest = None
    findings: tuple[Finding, ...] = (Finding(MANIFEST, "is damaged"),)
    if manifest is not None:
        findings = verify(folder, deep=True, observer=observer).findings
    plan_damaged = manifest is not None and restore_plan(out, manifest.plan)
    known = {MANIFEST, *_names(manifest)}
    wrong = {finding.name for finding in findings}
    if wrong & known:
        origin = _origin_of(out, manifest, config, base)
        for name in wrong & known:
            _forget(out, name)
        try:
            if manifest is None:
                out.remove(MANIFEST)
            elif data != manifest.to_bytes():
                out.replace_bytes(MANIFEST, manifest.to_bytes())
            make_dataset(origin.config, open_workspace(origin.config, origin.base, observer))
        except BaseException:
            if manifest is None:
                out.replace_bytes(MANIFEST, data)
            else:
                _remove_strays(out, manifest)
            raise
        manifest = read_manifest(out)
    assert manifest is not None
    strays = _remove_strays(out, manifest)
    remaining = verify(out.url, deep=True, observer=observer).findings if findings else ()
    rebuilt = wrong & known - {finding.name for finding in remaining}
    kept = len(_names(manifest) - wrong)
    if plan_damaged:
        findings, rebuilt = (*findings, Finding(PLAN, "is damaged")), {*rebuilt, PLAN}
    return Repair(findings, tuple(sorted(rebuilt)), strays, kept, remaining, manifest)


def _origin_of(
    out: Store, manifest: Manifest | None, config: "Mapping[str, Any] | str | Path | None", base: Path | None
) -> RunOrigin:
    """What to run again, and where its paths start.

    A configuration from the dataset's notes must not decide about executor, folders or memory of this machine.
    """
    if config is None:
        origin = recall(out)
    else:
        loaded, folder = load_config(config, base)
        origin = RunOrigin(loaded, folder, cache_root(loaded.cache, out.url, folder))
    if origin is None or (manifest is None and not out.exists(PLAN)):
        fix = "run it with another --out" if manifest is None else "give the run's configuration with --config"
        raise ConfigError(f"{out.where('_run')} no longer says how this dataset was made; {fix}")
    settled: dict[str, Any] = {"out": out.url, "cache": origin.cache}
    if config is None:
        refuse_noted(origin.config, out.where(RUN))
        settled["run"] = RunSection()
    elif manifest is not None:
        check_config(out, origin.config)
    if manifest is not None:
        claim(out, manifest.plan)
    return RunOrigin(origin.config.model_copy(update=settled), origin.base, origin.cache)


def _names(manifest: Manifest | None) -> set[str]:
    """The names of all files that a manifest lists."""
    if manifest is None:
        return set()
    shards = {shard.name for split in manifest.splits.values() for shard in split.shards}
    return shards | {file.name for file in manifest.files}


def _remove_strays(out: Store, manifest: Manifest) -> tuple[str, ...]:
    """Remove shards that do not belong to the dataset, with their records, so that no later run uses them."""
    strays = sorted(name for name in set(out.names()) - _names(manifest) if _SHARD.fullmatch(name))
    for name in strays:
        out.remove(name)
        _forget(out, name)
    return tuple(strays)


def _forget(out: Store, name: str) -> None:
    """Remove a shard's record, so that no run takes the shard as finished."""
    folder, _, file = name.rpartition("/")
    if _SHARD.fullmatch(name):
        out.remove(f"_run/{folder}/{file.partition('-')[0]}.json")
