"""Repair: of a finished dataset that is damaged, make again what is missing or wrong, and nothing else.

What was packed is known: the manifest says which bytes must come out, the notes of the run how its inputs were cut,
and the cache has the encoded parts. So nothing is scanned, and an input is read only where an encoded part is gone,
too. What comes out must have the very hash that the manifest says.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..schemas.errors import ConfigError, InputError, IntegrityError
from ..schemas.jsontext import parse_json
from ..schemas.manifest import FileRecord, Manifest
from ..schemas.run_section import RunSection
from .configfile import load_config
from .documents import NAME as DOCUMENTS
from .documents import RECORD as DOCUMENTS_RECORD
from .encode import EncodeSpec
from .encoding import EncodedInputs, Encoding, cache_root
from .executors import Executor
from .inputs.blocks import InputFile
from .manifests import open_output
from .observer import Observer, Silent
from .outfolder import MANIFEST, PLAN, Request, changed_inputs, check_config, read_manifest
from .packing import Packed
from .prospect import Prospect
from .recall import (
    CONFIG,
    Asked,
    recall,
    recall_files,
    recall_formats,
    recall_spec,
    recall_tokenizer,
    refuse_code,
    refuse_urls,
)
from .resolve import EngineChoice
from .run import Driver
from .store import LocalStore, hash_file
from .stores import Store
from .verify import Finding, verify

ASIDE = "_run/manifest.damaged"
"""Where a manifest is kept that cannot be read, while it is written anew."""
_HASH = re.compile(rb'^ "hash": "([0-9a-f]{64})",?$', re.MULTILINE)
_OURS = re.compile(r"(.*/)?shards/\d{5,}-[0-9a-f]{16}\.(arrow|parquet)")


@dataclass(frozen=True, slots=True)
class Repair:
    """What was found, and what became of it."""

    findings: tuple[Finding, ...]
    """What was wrong before."""
    rebuilt: tuple[str, ...]
    """Files that were made again."""
    removed: tuple[str, ...]
    """Shards that no manifest knows."""
    kept: int
    """Files that were sound, and were left alone."""
    encoded: int
    """Parts that had to be encoded again."""
    remaining: tuple[Finding, ...]
    """What is still wrong: things that making files again cannot mend."""
    manifest: Manifest

    @property
    def sound(self) -> bool:
        """Whether all is well now."""
        return not self.remaining


def repair(
    folder: str | Path,
    *,
    config: "Mapping[str, Any] | str | Path | None" = None,
    base: Path | None = None,
    observer: Observer | None = None,
) -> Repair:
    """Make a damaged dataset whole again.

    Args:
        folder: a finished dataset, or its URL.
        config: the run's configuration, for where its inputs are now; by default as the run noted it.
        base: where relative paths of `config` start.

    Raises:
        InputError: there is no finished dataset; or an input that is needed is gone or has changed.
        ConfigError: nothing says how the dataset was made; or its notes name code to run, or URLs to fetch: give
            `config`.
        OutputError: `config` is another run's.
        IntegrityError: what comes out is not what the manifest says; something in the folder leads out of it.
    """
    observer = observer or Silent()
    out = open_output(folder)
    if isinstance(out, LocalStore) and out.root.is_file():
        raise InputError(f"{folder} is a file; give the folder that `packtrain run` wrote")
    asked = _asked(out, config, base)
    manifest, mark = _manifest(out)
    if manifest is None:
        return _with_new_manifest(out, asked, mark, recalled=config is None, observer=observer)
    findings = verify(folder, deep=True, observer=observer).findings
    return _mend(out, asked, manifest, findings, recalled=config is None, observer=observer)


def _mend(
    out: Store,
    asked: Asked | None,
    manifest: Manifest,
    findings: tuple[Finding, ...],
    *,
    recalled: bool,
    observer: Observer,
) -> Repair:
    records = {record.name: record for record in _records(manifest)}
    # A finding inside a file whose bytes are right is nothing that the same bytes would mend.
    wrong = {finding.name for finding in findings} & set(records)
    bad = _damaged(out, [records[name] for name in sorted(wrong)])
    strays = [finding.name for finding in findings if finding.name not in records and _OURS.fullmatch(finding.name)]
    encoded = 0
    if bad:
        if asked is None:
            raise ConfigError(
                f"{out.where('_run')} does not say any more how this was made; give the configuration of the run "
                "with --config"
            )
        if recalled:
            refuse_code(asked.config, out.where(CONFIG))
        else:
            check_config(out, asked.config)
        for name in bad:
            _forget(out, name)
        driver = Repairer(asked, out, manifest.plan, manifest, recalled, observer)
        driver.run()
        encoded = driver.encoded
        still = _damaged(out, [records[name] for name in sorted(bad)])
        if still:
            raise IntegrityError(
                f"{', '.join(sorted(still))}: written anew, but not what the manifest says; see that the disk is "
                "sound, or run the configuration again with another --out"
            )
    for name in strays:
        out.remove(name)
    mended = bad | set(strays)
    remaining = tuple(finding for finding in findings if finding.name not in mended)
    if remaining:  # or it was only that a file beside them was damaged
        remaining = verify(out.url, observer=observer).findings
    kept = len(records) - len(bad)
    return Repair(findings, tuple(sorted(bad)), tuple(strays), kept, encoded, remaining, manifest)


def _with_new_manifest(
    out: Store, asked: Asked | None, mark: str | None, *, recalled: bool, observer: Observer
) -> Repair:
    """The same where the manifest itself cannot be believed: it follows from the plan."""
    plan = _plan_of(out)
    if asked is None or plan is None:
        raise ConfigError(
            f"{out.where(MANIFEST)} is damaged, and {out.where('_run')} does not say how this was made; run the "
            "configuration again with another --out (what is encoded already is used again)"
        )
    if recalled:
        refuse_code(asked.config, out.where(CONFIG))
    out.replace_bytes(ASIDE, out.read(MANIFEST) or b"")
    out.remove(MANIFEST)
    driver = Repairer(asked, out, plan, None, recalled, observer)
    manifest = driver.run()
    if mark is not None and mark != manifest.hash:
        out.remove(MANIFEST)
        out.replace_bytes(MANIFEST, out.read(ASIDE) or b"")
        raise IntegrityError(
            f"the manifest that follows from the plan has the hash {manifest.hash[:16]}, but the damaged one said "
            f"{mark[:16]}{_versions(plan)}; it was left as it was. Run the configuration again with another --out"
        )
    out.remove(ASIDE)
    finding = Finding(MANIFEST, "is damaged")
    rest = _mend(out, asked, manifest, verify(out.url, deep=True).findings, recalled=recalled, observer=observer)
    return Repair(
        (finding, *rest.findings), (MANIFEST, *rest.rebuilt), rest.removed, rest.kept, driver.encoded, rest.remaining,
        manifest,
    )  # fmt: skip


class Repairer(Driver):
    """A run that takes up what an earlier one wrote down, and must end with the same bytes.

    Args:
        plan: what the output was made from.
        manifest: what must come out; None where that is not known.
        recalled: whether the notes of the run may stand for its inputs. Else they are scanned.
    """

    def __init__(
        self,
        asked: Asked,
        out: Store,
        plan: dict[str, Any],
        manifest: Manifest | None,
        recalled: bool,
        observer: Observer,
    ) -> None:
        config = asked.config.model_copy(update={"out": out.url, "cache": asked.cache})
        if recalled:  # where to work, with whom and in which folder is not for a note to say
            config = config.model_copy(update={"run": RunSection()})
        super().__init__(config, asked.base, observer)
        self.known = plan
        self.manifest = manifest
        self.recalled = recalled
        self.encoded = 0
        """Parts that had to be made again."""

    def _prepare(self, executor: Executor) -> tuple[Encoding, EncodeSpec, Prospect]:
        taken = self._take_up() if self.recalled else None
        if taken is not None:
            return taken
        if self.recalled:
            refuse_urls(self.config, self.out.where(CONFIG))
        self.recalled = False
        return super()._prepare(executor)

    def _take_up(self) -> tuple[Encoding, EncodeSpec, Prospect] | None:
        """From the notes of the run; None where they do not suffice."""
        plan, config = self.known, self.config
        files, spec = recall_files(self.out), recall_spec(self.cache, plan)
        formats = recall_formats(config, plan)
        if files is None or spec is None or formats is None or plan["config"] != _plain(config.identity()):
            return None
        hashes = [(one["source"], one["file"], one["hash"]) for one in plan["inputs"]]
        if [(file.source, file.label, file.hash) for file in files] != hashes:
            return None
        tokenizer = recall_tokenizer(spec, plan)
        pairs = "pairs" in plan["encode"]
        encoding = Encoding(config, self.cache, files, tokenizer, self.observer, formats, pairs=pairs)
        tasks = encoding.tasks(spec)
        names = {name: form.name for name, form in formats.items()}
        engine = EngineChoice(spec.engine, spec.engine_version, (), 0.0)
        return encoding, spec, Prospect(files, names, pairs, len(tasks), len(tasks), 0, engine, 0, 0, 0)

    def _encode(self, encoding: Encoding, executor: Executor, spec: EncodeSpec) -> EncodedInputs:
        encoding.forget_damaged(executor, encoding.tasks(spec))
        missing = encoding.missing(encoding.tasks(spec))
        for task in missing:
            origin = task.origin
            there = task.path.exists() or (origin is not None and origin.path.exists())
            if self.recalled and not there:
                raise InputError(
                    f"{task.path} is gone, and so is what was encoded from it ({task}); put it back, or give a "
                    "configuration that says where it is now with --config"
                )
        self.encoded = len(missing)
        try:
            return super()._encode(encoding, executor, spec)
        except InputError as error:
            raise InputError(
                f"what the run was made from is not there any more, so it cannot be repaired: {error}"
            ) from error

    def _plan(self, encoding: Encoding, encoded: EncodedInputs) -> dict[str, Any]:
        if not self.recalled:
            plan = super()._plan(encoding, encoded)  # whether it is the same run, `claim` finds out
            changed = list(changed_inputs(self.known["inputs"], plan["inputs"]))
            if changed:
                raise InputError(
                    f"what is missing cannot be made again, because the run read other inputs: {'; '.join(changed[:5])}"
                    "; put back what was there, or make another dataset with --out"
                )
            return plan
        known = {key: value for key, value in self.known["encode"].items() if key != "pairs"}
        if _plain(encoded.spec.payload()) != known:
            raise IntegrityError(
                f"the run was encoded by {self.known['encode']['engine']}, which was caught with an error since; "
                "run the configuration again with another --out"
            )
        return self.known

    def _commit(self, plan: dict[str, Any], packed: Packed, rejects: FileRecord, schema: pa.Schema) -> Manifest:
        if self.manifest is not None:
            now = {one.name: one for split in packed.splits.values() for one in split.shards}
            now |= {one.name: one for one in (packed.documents, *packed.row_sizes, rejects)}  # type: ignore[misc]
            known = {one.name: one for one in _records(self.manifest)}
            other = sorted(name for name, one in now.items() if known.get(name) != one)
            if other:
                _forget_strays(self.out, [name for name in other if name not in known])
                raise IntegrityError(
                    f"what comes out is not what the manifest says: {', '.join(other[:5])}{_versions(plan)}; "
                    "the output was left as it was. Run the configuration again with another --out"
                )
        return super()._commit(plan, packed, rejects, schema)

    def _note_inputs(self, files: list[InputFile]) -> None:
        """They are noted."""

    def _request(self) -> Request | None:
        return None  # its inputs may be gone

    def _write_timings(self) -> None:
        """Keep those of the run: the report says how long it took to make the dataset, not to repair it."""


def _records(manifest: Manifest) -> list[Any]:
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    return [*shards, *manifest.files]


def _damaged(out: Store, records: list[Any]) -> set[str]:
    """Names of the files that are not what their records say."""
    bad = set[str]()
    for record in records:
        # By the name alone: asked by its hash, a store far away would give a copy of what it no longer holds.
        try:
            whole = out.size(record.name) == record.bytes and hash_file(out.local(record.name)).hash == record.hash
        except (OSError, IntegrityError):
            whole = False
        if not whole:
            bad.add(record.name)
    return bad


def _forget_strays(out: Store, names: list[str]) -> None:
    """Take shards away that were made and must not be, with the records that would let them count."""
    for name in names:
        if _OURS.fullmatch(name):
            out.remove(name)
            _forget(out, name)


def _forget(out: Store, name: str) -> None:
    """Take away the record that lets a file count, where it has one."""
    folder, _, file = name.rpartition("/")
    if _OURS.fullmatch(name):
        out.remove(f"_run/{folder}/{file.partition('-')[0]}.json")
    elif name == DOCUMENTS:
        out.remove(DOCUMENTS_RECORD)


def _manifest(out: Store) -> tuple[Manifest | None, str | None]:
    """The manifest; or None where it is damaged, and the hash that it said it had, as far as that can be read.

    Raises:
        InputError: there is none.
    """
    data = out.read(MANIFEST)
    if data is None and (aside := out.read(ASIDE)) is not None:
        out.put_bytes(MANIFEST, aside)  # an earlier repair was interrupted
        data = aside
    if data is None:
        raise InputError(
            f"{out.url} has no {MANIFEST}: nothing finished is in it that could be repaired. "
            "If a run was interrupted, or the file deleted, run the same configuration again: it goes on where it "
            "stopped"
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


def _asked(out: Store, config: "Mapping[str, Any] | str | Path | None", base: Path | None) -> Asked | None:
    if config is None:
        return recall(out)
    loaded, folder = load_config(config, base)
    return Asked(loaded, folder, cache_root(loaded, out.url, folder))


def _versions(plan: dict[str, Any]) -> str:
    """Which versions are not those of the run: the likely reason for other bytes."""
    from .. import __version__

    other = []
    for name, then in plan["versions"].items():
        now = __version__ if name == "packtrain" else version(name)
        if now != then:
            other.append(f"{name} {now} is installed, and it was made with {then}")
    return f" ({'; '.join(other)})" if other else ""


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
