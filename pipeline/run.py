"""The run: sources → encoded parts → plan → shards → manifest.

1. Look at the folder: finished already, interrupted, or another's.
2. Scan the inputs, load the tokenizer, choose the engine.
3. Encode the blocks that the cache does not hold.
4. Read lengths, decide what stays, plan the rows.
5. Lay out the shards; write documents.parquet beside them.
6. Close the ledger and write the manifest, last.

Steps 3 and 5 run in an executor; each of their tasks is a pure function of its argument, and what a task has put
is found again after a crash.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ..schemas.config import RunConfig
from ..schemas.errors import InputError, IntegrityError, StoreError
from ..schemas.fingerprint import fingerprint, hash_bytes
from ..schemas.ledger import Ledger
from ..schemas.manifest import FileRecord, Manifest
from .accounts import nothing_left
from .conditions import check_conditions
from .configfile import load_config
from .encode import PAIRS_FORMAT, EncodeSpec
from .encoding import DistrustedError, EncodedInputs, Encoding, cache_root
from .executors import Executor, InlineExecutor, LocalExecutor
from .formats import resolve_formats
from .huggingface import dataset_dict, dataset_info, dataset_state
from .observer import Observer, Silent
from .outfolder import (
    MANIFEST,
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
from .resolve import guess_engine, warm_up
from .selecting import Chosen, mask_of
from .sources import InputFile, scan_sources
from .store import LocalStore
from .timings import Timings
from .tokenizer import TokenizerLoading
from .unproved import check_proved
from .workers import count_workers

TIMINGS = "_run/timings.json"


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
        self.out = LocalStore((base / config.out).absolute())
        self.cache = LocalStore(cache_root(config, self.out.root, base))
        self.timings = Timings()

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
            files = scan_sources(self.config.sources, self.base, self.cache.root)
            if plan_inputs(files) != manifest.plan["inputs"]:
                return None
        self.observer.note(f"{self.out.root} is finished already; nothing to do")
        return manifest

    def run(self) -> Manifest:
        """Do what is not done yet."""
        with self._executor() as executor:
            self.observer.begin("load inputs and tokenizer", 0, "")
            encoding, spec, prospect = self._prepare(executor)
            self.observer.end()
            self._require_room(prospect.room_needed, "encoding and packing", self.out, self.cache)
            with self.timings.stage("encode"):
                encoded = self._encode(encoding, executor, spec)
            self.timings.seconds["encode, summed over workers"] = encoded.busy
            unproved = check_proved(self.config, encoding.files, encoded)
            if unproved is not None:
                self.observer.note(unproved)
            make = PairPacking if encoding.pairs else Packing
            packing = make(self.config, self.out, encoded, padding_id(self.config, encoding.tokenizer), self.observer)
            self.observer.begin("plan", 0, "")
            with self.timings.stage("read lengths"):
                chosen = packing.choose(packing.catalogue())
            self._require_something(packing.opened(chosen), encoding.files, encoded)
            # Only now: a run that fails over its configuration or its data leaves the folder free for a mended one.
            plan = self._plan(encoding, encoded)
            claim(self.out, plan)
            rejects = self._write_rejects(encoding.files, encoded)
            packed = self._pack(executor, packing, chosen)
        manifest = self._commit(plan, packed, rejects, packing.schema)
        Request.of(self.config, self.base, _version()).save(self.out)
        self._write_timings()
        return manifest

    def prospect(self) -> Prospect:
        """Scan and resolve, then stop: nothing but the cache's notes is written."""
        with self._executor() as executor:
            return self._prepare(executor)[2]

    def _prepare(self, executor: Executor) -> tuple[Encoding, EncodeSpec, Prospect]:
        folder = (self.base / self.config.tokenizer.path).absolute()
        template = named = self.config.tokenizer.chat_template
        if template is not None and "{{" not in template and "{%" not in template:
            template = str(self.base / template)
        cache = self.cache.root / "tokenizers"
        with TokenizerLoading.start(folder, chat_template=template, template_name=named, cache=cache) as loading:
            with self.timings.stage("scan"):
                files = scan_sources(self.config.sources, self.base, self.cache.root)
            formats = resolve_formats(self.config, self.base, files)
            for form in formats.values():
                if form.said is not None:
                    self.observer.note(form.said)
            check_conditions(self.config.sources, files, formats)
            pairs = is_preference(self.config, formats, files)
            if pairs:
                self.observer.note("preference pairs are not packed: each is a row of prompt, chosen and rejected ids")
            with self.timings.stage("tokenizer"):
                tokenizer = loading.result()
        encoding = Encoding(self.config, self.cache, files, tokenizer, self.observer, formats, pairs=pairs)
        with self.timings.stage("engine"):
            guess = encoding.spec(*guess_engine(self.config.tokenizer.engine, encoding.distrusted()))
            name = guess.save(self.cache)
            if encoding.missing(encoding.tasks(guess)):
                executor.start(warm_up, self.cache, name)
            choice = encoding.choose(executor, name)
            spec = encoding.spec(choice.name, choice.version)
        tasks = encoding.tasks(spec)
        missing = encoding.missing(tasks)
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
            room_needed=max(0, int(1.2 * (new_tokens * 4 + tokens * (TOKEN_BYTES + 1))) - self._written()),
            room_free=min(self.out.free_bytes(), self.cache.free_bytes()),
        )
        return encoding, spec, prospect

    def _encode(self, encoding: Encoding, executor: Executor, spec: EncodeSpec) -> EncodedInputs:
        # One fall back for a template and one for an engine; the reference itself cannot be caught.
        for _ in range(3):
            try:
                return encoding.encode(executor, spec)
            except DistrustedError as error:
                spec = encoding.distrust(error, spec)
        raise AssertionError("the reference engine and jinja2 were both held against themselves")

    def _require_something(self, ledger: Ledger, files: list[InputFile], encoded: EncodedInputs) -> None:
        """Refuse inputs of which nothing is left to pack; the rejects are written all the same.

        Raises:
            InputError: says what became of the rows.
        """
        total = ledger.total()
        if total.examples_packed:
            return
        if not self.out.exists(PLAN):
            self._write_rejects(files, encoded)
        reasons = {**total.rows_rejected, **total.rows_filtered, **total.examples_dropped}
        what = ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items(), key=lambda one: -one[1]))
        mend = nothing_left(total, self.out.where(REJECTS))
        raise InputError(
            f"nothing is left to pack: of {total.rows_read:,} rows, {total.rows_used:,} gave examples"
            f"{f' ({what})' if what else ''}.{self._first_reject(files, encoded)} {mend}"
        )

    def _first_reject(self, files: list[InputFile], encoded: EncodedInputs) -> str:
        blocks = [(file, block) for file in files for block in file.blocks]
        for (file, block), record in zip(blocks, encoded.records, strict=True):
            for line, _, reason, detail in record.refusals(unproved=mask_of(self.config).needs_turns)[:1]:
                return f" The first: {file.shown}, line {block.first_line + line + 1}: {reason}: {detail}."
        return ""

    def _pack(self, executor: Executor, packing: Packing, chosen: Chosen) -> Packed:
        with self.timings.stage("plan"):
            plans = packing.plan(chosen)
        self.observer.end()
        self._require_room(plans.tokens * (packing.token_bytes + 1) - self._written(), "the shards", self.out)
        with self.timings.stage("pack"):
            packed = packing.write(executor, chosen, plans)
        self.timings.seconds["pack, summed over workers"] = packed.busy
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
        plan_hash = fingerprint(plan)
        files = [packed.documents, *packed.row_sizes, rejects]
        if self.config.output.format == "arrow":
            several = len(packed.splits) > 1
            for split, record in packed.splits.items():
                folder = f"{split}/" if several else ""
                mark = fingerprint([plan_hash, split])
                files.append(self._put(f"{folder}dataset_info.json", dataset_info(split, record, schema)))
                files.append(self._put(f"{folder}state.json", dataset_state(split, folder, record, mark)))
            if several:
                files.append(self._put("dataset_dict.json", dataset_dict(sorted(packed.splits))))
        manifest = Manifest(
            plan_hash=plan_hash,
            plan=plan,
            schema={field.name: str(field.type) for field in schema},
            splits=packed.splits,
            files=tuple(sorted(files, key=lambda file: file.name)),
            ledger=packed.ledger,
        )
        data = json.dumps(manifest.to_json(), indent=1, sort_keys=True, ensure_ascii=False).encode()
        self.out.sweep()  # of workers that died
        if not self.out.put_bytes(MANIFEST, data) and self.out.read(MANIFEST) != data:
            raise IntegrityError(
                f"the run is not deterministic: {self.out.where(MANIFEST)} was written before with other content; "
                "please report it with the configuration"
            )
        return manifest

    def _put(self, name: str, data: bytes) -> FileRecord:
        if not self.out.put_bytes(name, data) and self.out.read(name) != data:
            self.out.replace_bytes(name, data)
        return FileRecord(name, len(data), hash_bytes(data), hashlib.sha256(data).hexdigest())

    def _write_rejects(self, files: list[InputFile], encoded: EncodedInputs) -> FileRecord:
        lines = []
        blocks = [(file, block) for file in files for block in file.blocks]
        for (file, block), record in zip(blocks, encoded.records, strict=True):
            for line, sub, reason, detail in record.refusals(unproved=mask_of(self.config).needs_turns):
                entry: dict[str, Any] = {
                    "source": file.source,
                    "file": file.shown,
                    "line": block.first_line + line + 1,
                    "reason": reason,
                    "detail": detail,
                }
                if sub >= 0:
                    entry["example"] = sub
                lines.append(msgspec.json.encode(entry))
        return self._put(REJECTS, b"".join(line + b"\n" for line in lines))

    def _written(self) -> int:
        """Bytes of shards that an interrupted run has put already."""
        names = (name for name in self.out.names() if "shards/" in name and not name.startswith("_run/"))
        return sum(self.out.size(name) or 0 for name in names)

    def _require_room(self, needed: int, what: str, *stores: LocalStore) -> None:
        for store in stores:
            free = store.free_bytes()
            if needed > free:
                raise StoreError(
                    f"there is no room for {what}: about {needed / 2**20:,.0f} MiB are needed, but the disk that "
                    f"holds {store.root} has {free / 2**20:,.0f} MiB free; free some room, or point --out and "
                    "`cache` elsewhere"
                )

    @contextmanager
    def _executor(self) -> Iterator[Executor]:
        workers = self.workers()
        asked = self.config.run.workers
        if asked is not None and workers < asked:
            self.observer.note(f"{workers:,} of {asked:,} workers: run.memory has no room for more")
        executor: Executor = InlineExecutor() if workers == 1 else LocalExecutor(workers)
        try:
            yield executor
        finally:
            executor.close()

    def workers(self) -> int:
        """How many workers run."""
        return count_workers(self.config.run)

    def _write_timings(self) -> None:
        self.out.replace_bytes(TIMINGS, msgspec.json.format(msgspec.json.encode(self.timings.seconds)))


def _version() -> str:
    from .. import __version__

    return __version__
