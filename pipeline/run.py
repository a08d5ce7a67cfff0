"""The run: sources → encoded parts → plan → shards → manifest.

1. Look at the folder: finished already, interrupted, or another's.
2. Scan the inputs, load the tokenizer, choose the engine.
3. Encode the blocks that the cache does not hold.
4. Read lengths, decide what stays, plan the rows.
5. Lay out the shards; write documents.parquet beside them.
6. Close the ledger and write the manifest, last; then the report, which is for people and no part of the dataset.

Steps 3 and 5 run in an executor; each of their tasks is a pure function of its argument, and what a task has put
is found again after a crash.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..schemas.config import RunConfig
from ..schemas.errors import InputError
from ..schemas.ledger import Ledger
from ..schemas.manifest import FileRecord, Manifest
from ..schemas.run_section import RunSection
from ..stages.nested_values import nests_values
from .accounts import fate_of_rows, nothing_left
from .backends import open_executor
from .cache_use import CacheUse, mark_cache
from .closing_advice import closing_advice
from .commit import commit, put_record
from .conditions import check_conditions
from .configfile import load_config
from .driver_lock import DriverLock, driving
from .encode import PAIRS_FORMAT, EncodeSpec
from .encoding import DistrustedError, EncodedInputs, Encoding, cache_root
from .executors import Executor
from .formats import resolve_formats, what_fits
from .misses import note_parts
from .observer import Observer, Silent
from .outfolder import (
    PLAN,
    REJECTS,
    Request,
    all_there,
    check_config,
    check_folder,
    claim,
    plan_inputs,
    read_manifest,
)
from .packing import Packed, Packing, padding_id
from .pairs_kind import is_preference
from .planning import TOKEN_BYTES
from .preference import PairPacking
from .prospect import Prospect
from .reader import Finished
from .recall import remember
from .rejects import first_reject, reject_lines
from .report.files import HTML as REPORT
from .resolve import guess_engine, warm_up
from .room import require_room, shards_written
from .scan_notes import SharedScan
from .selecting import mask_rejects
from .sources import InputFile, scan_sources
from .stores import open_store, require_conditional, require_writable, resolve_place, scratch_of
from .survey import Survey
from .timings import NAME as TIMINGS
from .timings import Timings
from .tokenizer import TokenizerLoading
from .tokenizer_place import find_tokenizer
from .unproved import check_proved, check_rewritten
from .workers import Need, count_workers, encoding_need, packing_need

if TYPE_CHECKING:
    from .report.at_end import AtEnd


def run(
    config: "RunConfig | Mapping[str, Any] | str | Path",
    *,
    observer: Observer | None = None,
    base: Path | None = None,
) -> Manifest:
    """Run packtrain and return the manifest of the finished dataset.

    A dataset that is finished already is not made again; an interrupted one goes on where it stopped.

    Args:
        config: a RunConfig, the same as plain data, or the path of a YAML file.
        observer: hears how it goes; silent by default.
        base: the folder where relative paths of the configuration start. By default the folder of the file, or
            the working directory.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError, OutputError: something that a person can mend.
        StoreError, IntegrityError, TaskError: a failure.
    """
    loaded, folder = load_config(config, base)
    driver = Driver(loaded, folder, observer or Silent())
    return driver.finished() or driver.run()


class Driver:
    """One run, from the configuration on."""

    def __init__(self, config: RunConfig, base: Path, observer: Observer) -> None:
        self.config = config
        self.base = base
        self.observer = observer
        scratch = None if config.run.scratch is None else (base / config.run.scratch).absolute()
        place = resolve_place(config.out, base)
        require_writable(place)
        self.out = open_store(place, scratch=scratch)
        cache = cache_root(config, place, base)
        require_writable(cache)
        self.cache = open_store(cache, scratch=scratch, keep=True)
        self.scratch = scratch_of(self.cache)
        self.timings = Timings()
        self.report: AtEnd | None = None
        self.advice: list[str] = []
        """What a person may want to change, when the run is finished."""
        self._why_missing: list[str] = []

    def finished(self, *, verify_inputs: bool = False) -> Manifest | None:
        """The manifest, if this very run is finished: inputs compared by sizes and times, in milliseconds.

        Args:
            verify_inputs: compare the inputs by their content, too.

        Raises:
            OutputError: the folder holds something else.
        """
        check_folder(self.out)
        check_config(self.out, self.config)
        request = Request.of(self.config, self.base, _version())
        manifest = read_manifest(self.out)
        if manifest is None or not request.matches(self.out) or not all_there(self.out, manifest):
            return None
        if verify_inputs:
            files = scan_sources(self.config.sources, self.base, self.scratch.root)
            if plan_inputs(files) != manifest.plan["inputs"]:
                return None
        mark_cache(self.scratch)
        self.observer.note(f"{self.out.url} is finished already; nothing to do")
        if self.config.run.report and not self.out.exists(REPORT):
            self.observer.note(f"its report is not there; packtrain report {self.out.url} makes it")
        return manifest

    def run(self) -> Manifest:
        """Do what is not done yet.

        Raises:
            BusyError: another driver works on the same output folder.
        """
        require_conditional(self.out, self.cache)
        with driving(self.out, shard=self.config.run.shard, wait=self.config.run.wait) as lock:
            finished = self.finished() if lock.waited else None
            return finished or self._run(lock)

    def _run(self, lock: DriverLock) -> Manifest:
        request = self._request()  # before anything is read: what changes from now on is another input
        with self._executor(self.config.run) as executor:
            self.observer.begin("load inputs and tokenizer", 0, "")
            encoding, spec, prospect = self._prepare(executor)
            self.observer.end()
            require_room(prospect.room_needed, "encoding and packing", self.out, self.scratch)
            encoded = self._encoded(encoding, executor, spec, prospect)
            make = PairPacking if encoding.pairs else Packing
            pad_id = padding_id(self.config, encoding.tokenizer)
            packing = make(self.config, self.out, encoded, pad_id, self.observer, self.scratch.root)
            self.observer.begin("plan", 0, "")
            with self.timings.stage("read lengths"):
                survey = packing.survey()
            self.observer.end()
            self._require_something(survey.ledger, encoding, encoded)
            self._fit(executor, packing_need(survey, encoded.places, self.config, pairs=encoding.pairs))
            # Only now: a run that fails over its configuration or its data leaves the folder free for a mended one.
            lock.check()
            plan = self._plan(encoding, encoded)
            claim(self.out, plan)
            self._note_inputs(encoding.files)
            rejects = self._write_rejects(encoding.files, encoded)
            packed = self._pack(executor, packing, survey)
        lock.check()
        manifest = self._commit(plan, packed, rejects, packing.schema)
        self._say_why_missing()
        self.advice = closing_advice(self.config, survey, encoding, encoded, manifest.ledger.total())
        if request is not None:
            request.save(self.out)
        self._write_timings()
        self._write_report(manifest)
        return manifest

    def prospect(self) -> Prospect:
        """Scan and resolve, then stop: nothing but the cache's notes is written."""
        here = self.config.run.model_copy(update={"executor": "local", "shard": None})
        with self._executor(here) as executor:
            prospect = self._prepare(executor)[2]
        self._say_why_missing()
        return prospect

    def _prepare(self, executor: Executor) -> tuple[Encoding, EncodeSpec, Prospect]:
        folder = find_tokenizer(self.config.tokenizer.path, self.base)
        template = named = self.config.tokenizer.chat_template
        if template is not None and "{{" not in template and "{%" not in template:
            template = str(self.base / template)
        cache = self.scratch.root / "tokenizers"
        with TokenizerLoading.start(folder, chat_template=template, template_name=named, cache=cache) as loading:
            with self.timings.stage("scan"):
                files = self._scan()
            formats = resolve_formats(self.config, self.base, files)
            for form in formats.values():
                for note in form.notes:
                    self.observer.note(note)
            check_conditions(self.config.sources, files, formats)
            pairs = is_preference(self.config, formats, files)
            if pairs:
                self.observer.note("preference pairs are not packed: each is a row of prompt, chosen and rejected ids")
            with self.timings.stage("tokenizer"):
                tokenizer = loading.result()
        encoding = Encoding(self.config, self.cache, files, tokenizer, self.observer, formats, pairs=pairs)
        with self.timings.stage("engine"):
            guess = encoding.spec(*guess_engine(self.config.tokenizer.engine, encoding.distrusted()))
            if guess.template is not None and nests_values(guess.template):
                executor.isolate()
            name = guess.save(self.cache)
            if encoding.missing(encoding.tasks(guess)):
                executor.start(warm_up, self.cache, name)
            choice = encoding.choose(executor, name)
            spec = encoding.spec(choice.name, choice.version)
        tasks = encoding.tasks(spec)
        missing = encoding.missing(tasks)
        self._why_missing = encoding.why_missing(tasks, missing)
        missing_bytes = sum(task.block.end - task.block.start for task in missing)
        total_bytes = sum(task.block.end - task.block.start for task in tasks)
        tokens = int(total_bytes * choice.tokens_per_byte)
        new_tokens = int(missing_bytes * choice.tokens_per_byte)
        prospect = Prospect(
            files=files,
            formats={name: form.name for name, form in formats.items()},
            pairs=pairs,
            blocks=len(tasks),
            cached=len(tasks) - len(missing),
            missing_bytes=missing_bytes,
            engine=choice,
            estimated_tokens=tokens,
            # The sample may be off by a fifth; ids of the parts, three columns of the shards, and their tables.
            room_needed=max(0, int(1.2 * (new_tokens * 4 + tokens * (TOKEN_BYTES + 1))) - shards_written(self.out)),
            room_free=min(free for one in (self.out, self.scratch) if (free := one.free_bytes()) is not None),
            memory=encoding_need((task.block for task in missing), choice.name) if missing else None,
        )
        return encoding, spec, prospect

    def _say_why_missing(self) -> None:
        """Only now: of a run that fails, it would hide what matters."""
        for why in self._why_missing:
            self.observer.note(why)

    def _scan(self) -> list[InputFile]:
        if self.config.run.shard is None:
            return scan_sources(self.config.sources, self.base, self.scratch.root)
        shared = SharedScan(self.config.run.shard, self.cache, self.scratch)
        return scan_sources(self.config.sources, self.base, self.scratch.root, shared)

    def _encoded(self, encoding: Encoding, executor: Executor, spec: EncodeSpec, prospect: Prospect) -> EncodedInputs:
        """Encode what the cache does not hold, with as many workers as fit, and say what nobody vouches for."""
        if prospect.memory is not None:
            self._fit(executor, prospect.memory)
        with self.timings.stage("encode"):
            encoded = self._encode(encoding, executor, spec)
        self.timings.summed("encode", encoded.busy, encoded.made)
        unproved = check_proved(self.config, encoding.files, encoded)
        if unproved is not None:
            self.observer.note(unproved)
        rewritten = check_rewritten(self.config, encoding.files, encoded)
        if rewritten is not None:
            self.observer.note(rewritten)
        return encoded

    def _encode(self, encoding: Encoding, executor: Executor, spec: EncodeSpec) -> EncodedInputs:
        # One fall back for a template and one for an engine; the reference itself cannot be caught.
        for _ in range(3):
            try:
                encoded = encoding.encode(executor, spec)
                note_parts(self.cache, encoding.files, encoding.tasks(spec))
                return encoded
            except DistrustedError as error:
                spec = encoding.distrust(error, spec)
        raise AssertionError("the reference engine and jinja2 were both held against themselves")

    def _require_something(self, ledger: Ledger, encoding: Encoding, encoded: EncodedInputs) -> None:
        """Refuse inputs of which nothing is left to pack; the rejects are written all the same.

        Raises:
            InputError: says what became of the rows.
        """
        total, files = ledger.total(), encoding.files
        if total.examples_packed:
            return
        if not self.out.exists(PLAN):
            self._write_rejects(files, encoded)
        fits = "" if total.rows_used else what_fits(files, encoding.formats)
        mend = nothing_left(total, self.out.where(REJECTS), fits)
        first = first_reject(files, encoded.records, mask_rejects(self.config))
        raise InputError(f"nothing is left to pack: of {fate_of_rows(total)}.{first} {mend}")

    def _pack(self, executor: Executor, packing: Packing, survey: Survey) -> Packed:
        require_room(survey.tokens * (packing.token_bytes + 1) - shards_written(self.out), "the shards", self.out)
        with self.timings.stage("plan and pack"):
            packed = packing.write(executor, survey)
        self.timings.seconds["plan"] = packed.planning
        self.timings.summed("pack", packed.busy, packed.made)
        return packed

    def _plan(self, encoding: Encoding, encoded: EncodedInputs) -> dict[str, Any]:
        """What the written bytes depend on."""
        plan = {
            "config": self.config.identity(),
            "formats": {name: form.payload() for name, form in encoding.formats.items()},
            "inputs": plan_inputs(encoding.files),
            "tokenizer": {
                "hash": encoding.tokenizer.hash,
                "template": encoding.tokenizer.template_hash,
                "pad_id": encoding.tokenizer.pad_id,
            },
            "encode": encoded.spec.payload() | ({"pairs": PAIRS_FORMAT} if encoding.pairs else {}),
            "versions": {name: version(name) for name in ("jinja2", "pyarrow", "tokenizers")}
            | {"packtrain": _version()},
        }
        # As it will be read again: lists for tuples.
        read: dict[str, Any] = json.loads(json.dumps(plan))
        return read

    def _commit(self, plan: dict[str, Any], packed: Packed, rejects: FileRecord, schema: pa.Schema) -> Manifest:
        return commit(self.out, self.config, plan, packed, rejects, schema)

    def _write_rejects(self, files: list[InputFile], encoded: EncodedInputs) -> FileRecord:
        lines = reject_lines(files, encoded.records, mask_rejects(self.config))
        return put_record(self.out, REJECTS, lines)

    @contextmanager
    def _executor(self, section: RunSection) -> Iterator[Executor]:
        workers = self.workers()
        asked = self.config.run.workers
        if asked is not None and workers < asked:
            self.observer.note(f"{workers:,} of {asked:,} workers: run.memory has no room for more")
        executor = open_executor(section, workers, self.out, self.cache)
        with CacheUse(self.scratch):
            try:
                yield executor
            finally:
                executor.close()

    def _fit(self, executor: Executor, need: Need) -> None:
        """No more workers than memory has room for, now that more is known of what they will do.

        Raises:
            ConfigError: there is no room for one.
        """
        workers = count_workers(self.config.run, need)
        if workers < self.workers() and need.why:
            self.observer.note(f"{workers:,} of {self.workers():,} workers: {need.why}")
        executor.limit(workers)

    def workers(self) -> int:
        """How many workers run."""
        return count_workers(self.config.run)

    def _note_inputs(self, files: list[InputFile]) -> None:
        remember(self.out, self.config, self.base, self.cache, files)

    def _request(self) -> Request | None:
        return Request.of(self.config, self.base, _version())

    def _write_report(self, manifest: Manifest) -> None:
        if not self.config.run.report or (self.config.run.shard is not None and self.out.exists(REPORT)):
            return  # or another of the runs that share the work has written it
        from .report.at_end import try_report

        self.report = try_report(Finished(self.out, manifest), self.observer)

    def _write_timings(self) -> None:
        self.out.replace_bytes(TIMINGS, self.timings.to_json())


def _version() -> str:
    from .. import __version__

    return __version__
