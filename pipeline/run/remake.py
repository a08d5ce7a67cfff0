"""Repeats a finished run to get the same bytes: from its notes if they are complete, else from its inputs."""

import json
import re
from collections.abc import Sequence
from typing import Any

from ...schemas.config.config import RunConfig
from ...schemas.config.run_section import RunSection
from ...schemas.errors import InputError, IntegrityError
from ...schemas.manifest import FileRecord, Manifest
from ...schemas.versions import version
from ..contamination.evaluation import Evaluation, noted_evaluation, prepare_evaluation
from ..dataset.output_folder import changed_inputs, claim
from ..dataset.run_notes import (
    CONFIG,
    RunOrigin,
    recall_files,
    recall_formats,
    recall_spec,
    recall_tokenizer,
    refuse_urls,
)
from ..encode.driver import Encoded
from ..encode.prepared import Prepared
from ..execute.executor import Executor
from ..inputs.joined import join_small
from ..observer import Observer
from ..pack.documents import NAME as DOCUMENTS
from ..pack.documents import RECORD as DOCUMENTS_RECORD
from ..pack.driver import Packed
from ..store.driver_lock import driving
from ..store.open import Store, require_conditional
from .commit import commit, put_card
from .disk_space import require_room
from .driver import find_finished, write_report
from .estimate import RunEstimate
from .steps import (
    decontaminate,
    encode_inputs,
    pack,
    packtrain_version,
    plan_of,
    prepare_inputs,
    select,
    write_lists,
)
from .workspace import Workspace, open_workers, open_workspace

SHARD = re.compile(r"(.*/)?shards/\d{5,}-[0-9a-f]{16}\.(arrow|parquet)")


def remake(
    origin: RunOrigin,
    out: Store,
    known: dict[str, Any],
    manifest: Manifest | None,
    *,
    recalled: bool,
    observer: Observer,
) -> tuple[Manifest, int]:
    """Repeat an earlier run. The result must have the same bytes.

    Args:
        known: the earlier run's plan, which says what its output was made from.
        manifest: the required result; None if it is unknown.
        recalled: whether to use the run's notes instead of scanning the inputs.

    Returns:
        The manifest, and the number of parts that had to be encoded again.
    """
    config = origin.config.model_copy(update={"out": out.url, "cache": origin.cache})
    if recalled:  # a note in the dataset must not decide about executor, folders or memory of this machine
        config = config.model_copy(update={"run": RunSection()})
    work = open_workspace(config, origin.base, observer)
    require_conditional(work.out, work.cache)
    with driving(work.out, shard=config.run.shard, wait=config.run.wait) as lock:
        if lock.waited and (finished := find_finished(config, work)) is not None:
            return finished, 0
        with open_workers(config.run, work) as executor:
            prepared = estimate = None
            if recalled:
                executor.get_ready()
                prepared = _recalled(config, work, known)
                if prepared is None:
                    refuse_urls(config, out.where(CONFIG))
            recalled = prepared is not None
            if prepared is None:
                prepared, estimate = prepare_inputs(config, work, executor)
                require_room(estimate.room_needed, "encoding and packing", work.out, work.scratch)
            encoded, again = _encode_again(config, prepared, estimate, work, executor, recalled=recalled)
            plan = known if recalled else plan_of(config, prepared, encoded)
            _require_same_run(known, encoded, plan)
            encoded = decontaminate(config, prepared, encoded, work, executor)
            selected = select(config, prepared, encoded, work, executor)
            lock.check()
            claim(work.out, plan)  # fails if this is another run
            lists = write_lists(config, prepared, encoded, work)
            packed = pack(selected, work, executor)
        lock.check()
        if manifest is not None:
            _require_same_files(work.out, manifest, packed, lists, plan)
        made = commit(work.out, config.output.format, plan, packed, lists, selected.rows.schema)
        put_card(work.out, made, observer)
    for why in estimate.why_missing if estimate is not None else ():
        observer.note(why)
    # timings.json stays: the report says how long the original run took, not the repair.
    write_report(config, work, made)
    return made, again


def _recalled(config: RunConfig, work: Workspace, known: dict[str, Any]) -> Prepared | None:
    """Read what the run prepared from its notes; None if they are incomplete."""
    files, spec = recall_files(work.out), recall_spec(work.cache, known)
    formats = recall_formats(config, known)
    if files is None or spec is None or formats is None or known["config"] != _plain(config.identity()):
        return None
    hashes = [(one["source"], one["file"], one["hash"]) for one in known["inputs"]]
    if [(file.source, file.label, file.hash) for file in files] != hashes:
        return None
    tokenizer, pairs = recall_tokenizer(spec, known), "pairs" in known["encode"]
    evaluation = _recalled_evaluation(config, work, known)
    engine = config.tokenizer.engine
    joined = tuple(join_small(files))
    return Prepared(config.sources, tuple(files), joined, formats, pairs, tokenizer, engine, spec, 0.0, evaluation)


def _recalled_evaluation(config: RunConfig, work: Workspace, known: dict[str, Any]) -> Evaluation | None:
    """The evaluation data: from the cache, else from its files.

    Raises:
        ConfigError, InputError: it is in neither, or the files have changed.
    """
    section = config.decontaminate
    if section is None:
        return None
    noted = known.get("evaluation", {})
    found = noted_evaluation(noted, work.cache)
    if found is None:
        refuse_urls(config, work.out.where(CONFIG), section.against)
        found = prepare_evaluation(section, work.base, work.cache, work.scratch)
    if _plain(found.payload()) != noted:
        raise InputError(
            "missing files cannot be rebuilt, because the evaluation files of decontaminate.against have changed since "
            "the run; put the old ones back, or make another dataset with --out"
        )
    return found


def _encode_again(
    config: RunConfig,
    prepared: Prepared,
    estimate: RunEstimate | None,
    work: Workspace,
    executor: Executor,
    *,
    recalled: bool,
) -> tuple[Encoded, int]:
    """Encode the parts that are missing or damaged in the cache; also return their number.

    Raises:
        InputError: an input that is needed is gone, or has changed.
    """
    tasks = prepared.tasks(work.cache)
    work.parts.forget_damaged(executor, tasks, work.observer)
    missing = work.parts.missing(tasks)
    for task in missing if recalled else ():
        there = task.path.exists() or (task.origin is not None and task.origin.path.exists())
        if not there:
            raise InputError(
                f"{task.path} is gone, and so is the part that was encoded from it ({task}); put the file back, or "
                "give a configuration that names its new place: --config"
            )
    try:
        return encode_inputs(config, prepared, estimate, work, executor), len(missing)
    except InputError as error:
        raise InputError(f"the run's inputs are no longer available, so it cannot be repaired: {error}") from error


def _require_same_run(known: dict[str, Any], encoded: Encoded, plan: dict[str, Any]) -> None:
    """Refuse changed inputs, and parts encoded by another engine; `claim` compares the rest.

    Raises:
        InputError: names the inputs that have changed.
        IntegrityError: the run's engine has failed the engine check since.
    """
    changed = list(changed_inputs(known["inputs"], plan["inputs"]))
    if changed:
        raise InputError(
            f"missing files cannot be rebuilt, because inputs have changed since the run: {'; '.join(changed[:5])}"
            "; put the old inputs back, or make another dataset with --out"
        )
    encoding = {key: value for key, value in known["encode"].items() if key != "pairs"}
    if plan is known and _plain(encoded.spec.payload()) != encoding:
        raise IntegrityError(
            f"the run was encoded by {known['encode']['engine']}, which has since been found to tokenize wrongly; "
            "run the configuration again with another --out"
        )


def _require_same_files(
    out: Store, manifest: Manifest, packed: Packed, lists: Sequence[FileRecord], plan: dict[str, Any]
) -> None:
    """Refuse files that differ from the manifest. New shards that it does not name are removed.

    Raises:
        IntegrityError: names the files that differ.
    """
    now: dict[str, Any] = {one.name: one for split in packed.splits.values() for one in split.shards}
    now |= {one.name: one for one in (packed.documents, *packed.row_sizes, *lists)}
    known = {one.name: one for one in records_of(manifest)}
    other = sorted(name for name, one in now.items() if known.get(name) != one)
    if other:
        _forget_strays(out, [name for name in other if name not in known])
        raise IntegrityError(
            f"the rebuilt files do not match the manifest: {', '.join(other[:5])}{other_versions(plan)}; "
            "the output was left as it was. Run the configuration again with another --out"
        )


def records_of(manifest: Manifest) -> list[Any]:
    """The records of all files that the manifest names."""
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    return [*shards, *manifest.files]


def _forget_strays(out: Store, names: list[str]) -> None:
    """Remove shards that do not belong to the dataset, with their records, so that no later run uses them."""
    for name in names:
        if SHARD.fullmatch(name):
            out.remove(name)
            forget(out, name)


def forget(out: Store, name: str) -> None:
    """Remove a file's record, so that no run takes the file as finished."""
    folder, _, file = name.rpartition("/")
    if SHARD.fullmatch(name):
        out.remove(f"_run/{folder}/{file.partition('-')[0]}.json")
    elif name == DOCUMENTS:
        out.remove(DOCUMENTS_RECORD)


def other_versions(plan: dict[str, Any]) -> str:
    """Name the versions that differ from the run's: the likely reason for different bytes."""
    other = []
    for name, then in plan["versions"].items():
        now = packtrain_version() if name == "packtrain" else version(name)
        if now != then:
            other.append(f"{name} {now} is installed, and it was made with {then}")
    return f" ({'; '.join(other)})" if other else ""


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
