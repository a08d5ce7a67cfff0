"""Repair a damaged dataset: rebuild its missing or damaged files, and leave the others alone.

The manifest gives the hash of every file, the run's notes say how its inputs were cut into blocks, and the cache has
the encoded parts. So nothing is scanned, and an input is read only if an encoded part is gone, too. Every rebuilt file
must have the hash that the manifest gives.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError, InputError, IntegrityError
from ...schemas.jsontext import parse_json
from ...schemas.manifest import Manifest
from ...schemas.names import MANIFEST
from ..configfile import load_config
from ..dataset.manifests import open_output
from ..dataset.output_folder import PLAN, check_config, read_manifest
from ..dataset.run_notes import CONFIG, RunOrigin, recall, refuse_code
from ..dataset.verify import Finding, verify
from ..observer import Observer, Silent
from ..store.local import LocalStore, hash_file
from ..store.open import Store, cache_root
from .remake import SHARD, forget, other_versions, records_of, remake

ASIDE = "_run/manifest.damaged"
"""Name under which a damaged manifest is kept while a new one is written."""
_HASH = re.compile(rb'^ "hash": "([0-9a-f]{64})",?$', re.MULTILINE)


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
    encoded: int
    """Number of parts that had to be encoded again."""
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
    """Rebuild the damaged or missing files of a finished dataset.

    Args:
        folder: a finished dataset, or its URL.
        config: the run's configuration, which says where its inputs are now; by default the one in the run's notes.
        base: where relative paths of `config` start.

    Raises:
        InputError: there is no finished dataset; or an input that is needed is gone or has changed.
        ConfigError: `config` is needed, because the run's notes are missing, or name code to run or URLs to fetch.
        OutputError: `config` belongs to another run.
        IntegrityError: the rebuilt files do not match the manifest; or a name in the folder points outside it.
    """
    observer = observer or Silent()
    out = open_output(folder)
    if isinstance(out, LocalStore) and out.root.is_file():
        raise InputError(f"{folder} is a file; give the folder that `packtrain run` wrote")
    origin = _origin_of(out, config, base)
    manifest, mark = _manifest(out)
    if manifest is None:
        return _with_new_manifest(out, origin, mark, recalled=config is None, observer=observer)
    findings = verify(folder, deep=True, observer=observer).findings
    return _rebuild(out, origin, manifest, findings, recalled=config is None, observer=observer)


def _rebuild(
    out: Store,
    origin: RunOrigin | None,
    manifest: Manifest,
    findings: tuple[Finding, ...],
    *,
    recalled: bool,
    observer: Observer,
) -> Repair:
    records = {record.name: record for record in records_of(manifest)}
    # Rebuilding gives the same bytes, so it cannot fix a finding inside a file with the right hash.
    wrong = {finding.name for finding in findings} & set(records)
    bad = _damaged(out, [records[name] for name in sorted(wrong)])
    strays = [finding.name for finding in findings if finding.name not in records and SHARD.fullmatch(finding.name)]
    encoded = 0
    if bad:
        if origin is None:
            raise ConfigError(
                f"{out.where('_run')} no longer says how this dataset was made; give the run's configuration "
                "with --config"
            )
        if recalled:
            refuse_code(origin.config, out.where(CONFIG))
        else:
            check_config(out, origin.config)
        for name in bad:
            forget(out, name)
        _, encoded = remake(origin, out, manifest.plan, manifest, recalled=recalled, observer=observer)
        still = _damaged(out, [records[name] for name in sorted(bad)])
        if still:
            raise IntegrityError(
                f"{', '.join(sorted(still))}: rebuilt, but still different from the manifest; check the disk, or run "
                "the configuration again with another --out"
            )
    for name in strays:
        out.remove(name)
    fixed = bad | set(strays)
    remaining = tuple(finding for finding in findings if finding.name not in fixed)
    if remaining:  # some findings may be gone now, because another file caused them
        remaining = verify(out.url, observer=observer).findings
    kept = len(records) - len(bad)
    return Repair(findings, tuple(sorted(bad)), tuple(strays), kept, encoded, remaining, manifest)


def _with_new_manifest(
    out: Store, origin: RunOrigin | None, mark: str | None, *, recalled: bool, observer: Observer
) -> Repair:
    """Repair a dataset whose manifest is damaged: rebuild the manifest from the plan, then the rest."""
    plan = _plan_of(out)
    if origin is None or plan is None:
        raise ConfigError(
            f"{out.where(MANIFEST)} is damaged, and {out.where('_run')} does not say how this dataset was made; run "
            "the configuration again with another --out (it uses the encoded parts in the cache)"
        )
    if recalled:
        refuse_code(origin.config, out.where(CONFIG))
    out.replace_bytes(ASIDE, out.read(MANIFEST) or b"")
    out.remove(MANIFEST)
    manifest, encoded = remake(origin, out, plan, None, recalled=recalled, observer=observer)
    if mark is not None and mark != manifest.hash:
        out.remove(MANIFEST)
        out.replace_bytes(MANIFEST, out.read(ASIDE) or b"")
        raise IntegrityError(
            f"the rebuilt manifest has the hash {manifest.hash[:16]}, but the damaged one says "
            f"{mark[:16]}{other_versions(plan)}; it was left as it was. Run the configuration again with another --out"
        )
    out.remove(ASIDE)
    finding = Finding(MANIFEST, "is damaged")
    rest = _rebuild(out, origin, manifest, verify(out.url, deep=True).findings, recalled=recalled, observer=observer)
    return Repair(
        (finding, *rest.findings), (MANIFEST, *rest.rebuilt), rest.removed, rest.kept, encoded, rest.remaining,
        manifest,
    )  # fmt: skip


def _damaged(out: Store, records: list[Any]) -> set[str]:
    """Names of files that do not match their records."""
    bad = set[str]()
    for record in records:
        # Read by name, not by hash: for a hash, a remote store may return a local copy of a file it no longer has.
        try:
            whole = out.size(record.name) == record.bytes and hash_file(out.local(record.name)).hash == record.hash
        except (OSError, IntegrityError):
            whole = False
        if not whole:
            bad.add(record.name)
    return bad


def _manifest(out: Store) -> tuple[Manifest | None, str | None]:
    """Return (manifest, None). For a damaged manifest return (None, the hash that it gives for itself); the hash is
    None if it is unreadable.

    Raises:
        InputError: the folder has no manifest.
    """
    data = out.read(MANIFEST)
    if data is None and (aside := out.read(ASIDE)) is not None:
        out.put_bytes(MANIFEST, aside)  # left by an earlier repair that was interrupted
        data = aside
    if data is None:
        raise InputError(
            f"{out.url} has no {MANIFEST}, so there is no finished dataset to repair. If a run was interrupted, or "
            "the file deleted, run the same configuration again: it continues where it stopped"
        )
    try:
        manifest = read_manifest(out)
    except IntegrityError:
        manifest = None
    if manifest is not None and manifest.to_bytes() == data:
        return manifest, None
    found = _HASH.search(data)
    return None, found[1].decode() if found is not None else None


def _plan_of(out: Store) -> dict[str, Any] | None:
    try:
        plan: dict[str, Any] = parse_json(out.read(PLAN) or b"null")
    except ValueError:
        return None
    return plan


def _origin_of(out: Store, config: "Mapping[str, Any] | str | Path | None", base: Path | None) -> RunOrigin | None:
    if config is None:
        return recall(out)
    loaded, folder = load_config(config, base)
    return RunOrigin(loaded, folder, cache_root(loaded.cache, out.url, folder))
