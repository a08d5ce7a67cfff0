"""Repair a finished dataset: forget its damaged files, and run its configuration again.

A run makes only what has no finished file, so the other files are left alone. The new manifest must have the hash of
the old one, else the old one is put back.
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
from ..dataset.run_notes import RUN, RunOrigin, recall, refuse_code, refuse_urls
from ..dataset.verify import Finding, verify
from ..observer import Observer, Silent
from ..store.local import LocalStore
from ..store.open_store import Store, cache_root
from .run import make_dataset
from .workers import open_workspace

ASIDE = "_run/manifest.damaged"
"""Name under which the manifest is kept while a new one is written."""
_HASH = re.compile(rb'^ "hash": "([0-9a-f]{64})",?$', re.MULTILINE)
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
        IntegrityError: the rebuilt manifest has another hash; or a name in the folder points outside it.
    """
    observer = observer or Silent()
    out = open_output(folder)
    if isinstance(out, LocalStore) and out.root.is_file():
        raise InputError(f"{folder} is a file; give the folder that `packtrain run` wrote")
    data = _manifest_bytes(out)
    try:
        manifest = read_manifest(out)
    except IntegrityError:
        manifest = None
    findings: tuple[Finding, ...] = (Finding(MANIFEST, "is damaged"),)
    if manifest is not None:
        findings = verify(folder, deep=True, observer=observer).findings
        wanted: str | None = manifest.hash
        plan_damaged = restore_plan(out, manifest.plan)
    else:
        found = _HASH.search(data)
        wanted = found[1].decode() if found is not None else None
        plan_damaged = False  # or the run finds it
    known = {MANIFEST} if manifest is None else {MANIFEST, *_names(manifest)}
    wrong = {finding.name for finding in findings}
    if wrong & known:
        origin = _origin_of(out, config, base)
        if origin is None or (manifest is None and not out.exists(PLAN)):
            fix = "run it with another --out" if manifest is None else "give the run's configuration with --config"
            raise ConfigError(f"{out.where('_run')} no longer says how this dataset was made; {fix}")
        if config is None:
            refuse_code(origin.config, out.where(RUN))
            refuse_urls(origin.config, out.where(RUN))
        else:
            check_config(out, origin.config)
        if manifest is not None:
            claim(out, manifest.plan)
        _run_again(out, origin, data, wanted, wrong & known, recalled=config is None, observer=observer)
        manifest = read_manifest(out)
    assert manifest is not None
    strays = _remove_strays(out, manifest)
    remaining = verify(out.url, deep=True, observer=observer).findings if findings else ()
    rebuilt = wrong & known - {finding.name for finding in remaining}
    names = _names(manifest)
    if plan_damaged:
        findings, rebuilt = (*findings, Finding(PLAN, "is damaged")), {*rebuilt, PLAN}
    return Repair(findings, tuple(sorted(rebuilt)), strays, len(names - wrong), remaining, manifest)


def _run_again(
    out: Store,
    origin: RunOrigin,
    data: bytes,
    wanted: str | None,
    wrong: set[str],
    *,
    recalled: bool,
    observer: Observer,
) -> None:
    """Run the configuration in a folder without its manifest and without the records of wrong files.

    Args:
        data, wanted: the manifest, and its hash if that can be read.
        recalled: whether the configuration is the dataset's note, which must not decide about executor, folders or
            memory of this machine.
    """
    settled: dict[str, Any] = {"out": out.url, "cache": origin.cache}
    again = origin.config.model_copy(update=settled | ({"run": RunSection()} if recalled else {}))
    work = open_workspace(again, origin.base, observer)
    for name in wrong:
        _forget(out, name)
    out.replace_bytes(ASIDE, data)
    out.remove(MANIFEST)
    try:
        made = make_dataset(again, work).manifest
        if wanted not in (None, made.hash):
            raise IntegrityError(
                f"the rebuilt files do not match the manifest: its hash would be {made.hash[:16]} instead of "
                f"{str(wanted)[:16]}; the manifest was left as it was. Run the configuration again with another --out"
            )
    except BaseException:
        out.replace_bytes(MANIFEST, data)
        try:
            before = read_manifest(out)
        except IntegrityError:
            before = None
        if before is not None:
            _remove_strays(out, before)
        out.remove(ASIDE)
        raise
    out.remove(ASIDE)


def _names(manifest: Manifest) -> set[str]:
    """The names of all files that the manifest lists."""
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
    """Remove a file's record, so that no run takes the file as finished."""
    folder, _, file = name.rpartition("/")
    if _SHARD.fullmatch(name):
        out.remove(f"_run/{folder}/{file.partition('-')[0]}.json")


def _manifest_bytes(out: Store) -> bytes:
    """The content of the manifest, put back if an earlier repair was interrupted.

    Raises:
        InputError: there is none.
    """
    data = out.read(MANIFEST)
    if data is None and (data := out.read(ASIDE)) is not None:
        out.put_bytes(MANIFEST, data)
    if data is None:
        raise InputError(
            f"{out.url} has no {MANIFEST}, so there is no finished dataset to repair. If a run was interrupted, or "
            "the file deleted, run the same configuration again: it continues where it stopped"
        )
    return data


def _origin_of(out: Store, config: "Mapping[str, Any] | str | Path | None", base: Path | None) -> RunOrigin | None:
    if config is None:
        return recall(out)
    loaded, folder = load_config(config, base)
    return RunOrigin(loaded, folder, cache_root(loaded.cache, out.url, folder))
