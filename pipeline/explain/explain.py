"""Follows one example of a finished dataset: its source row, its tokens, and what happened to them.

Why an example is left out is read from the table of documents, `rejects.jsonl` and the shards; nothing is decided,
rendered or tokenized a second time. What is missing is reported as missing, never guessed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...schemas.errors import InputError, IntegrityError, PacktrainError
from ...schemas.escape import escape_line
from ...schemas.jsontext import decode_note
from ...schemas.names import REJECTS
from ...schemas.reasons import NOT_DRAWN, cause_of
from ...schemas.rows import UNPADDED
from ...stages.arrays import view
from ...stages.mask.policy import Mask
from ...stages.tokenize.encode import MIXED, UNPROVED
from ..dataset.cached_parts import CachedParts, EncodedDocument, open_parts
from ..dataset.decode import Decoder, Piece, load_decoder, pieces
from ..dataset.documents import Address, PackedDocument, PackedDocuments, parse_id
from ..dataset.open_dataset import Finished
from ..dataset.run_notes import recall_files, recall_spec, tokenizer_folder
from ..inputs.blocks import split_name
from ..pack.outcomes import REASONS
from ..pack.table import NAME as TABLE
from ..pack.table import Documents as Table
from ..pack.table import open_table
from .story import CutTokens, Standing, Story, source_row
from .tokens import Stretch, TokenFate, stretches_of

_LISTED = 20


class Follower:
    """Follows examples of one finished dataset.

    Args:
        tokenizer: the folder of the tokenizer that turns tokens into text; by default the run's.

    All methods may raise:
        InputError: there is no such example; the message names the nearest ids.
        IntegrityError: a file of the folder is missing or damaged.
    """

    def __init__(self, dataset: Finished, tokenizer: Path | None = None) -> None:
        self.dataset, self._plan = dataset, dataset.manifest.plan
        opened = open_parts(dataset)
        self.cached = opened if isinstance(opened, CachedParts) else None
        self._notes = [opened] if isinstance(opened, str) else []
        self._documents, self._table = PackedDocuments(dataset), _open_table(dataset, self.cached)
        files = recall_files(dataset.store, self._plan)
        self._files = {(file.source, file.label): file for file in files}
        self._decoder = self._find_decoder(tokenizer)
        try:
            self._masks = Mask.of_plan(self._plan["config"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{dataset.store.url} was made by another version of packtrain, and this one cannot read its mask "
                f"({error}); use that version, or make the dataset again"
            ) from error

    def by_id(self, id: str) -> Story:
        """Return the story of an example, by its id."""
        found = self._documents.by_id(id)
        if found is None:
            address = self._address(id)
            found = self._documents.by_id(address.id)
            if found is None:
                return self._unpacked(address, id)
        return self._packed(found)

    def by_number(self, doc: int) -> Story:
        """Return the story of an example, by its doc id."""
        found = self._documents.by_number(doc)
        if found is not None:
            return self._packed(found)
        if self.cached is None:
            raise InputError(
                f"no packed document of {self.dataset.store.url} has the doc id {doc:,}, and documents that are not "
                f"packed cannot be found: {self._notes[0]}. documents.parquet lists the packed documents"
            )
        if not 0 <= doc < self.cached.count:
            raise InputError(
                f"there is no document {doc:,} in {self.dataset.store.url}; doc ids are 0 to {self.cached.count - 1:,}"
            )
        one, part = self.cached.document(doc), self.cached.of_document(doc)
        file, line = part.file.at(part.block, one.line)
        return self._dropped(self.cached, Address(file.source, file.label, line, one.sub), one)

    def _packed(self, found: PackedDocument) -> Story:
        story = self._begin(_address_of(found), found.doc_id, "packed", total=found.tokens)
        rows = list(_rows_of(self.dataset, found.doc_id))
        if self.dataset.manifest.preference:
            story.state, story.row = "a preference pair, not packed", rows[0][:2]
            return story
        one = self.cached.document(found.doc_id) if self.cached is not None else None
        if one is None and UNPADDED not in self.dataset.manifest.schema and self._plan["config"]["pack"]["align"] > 1:
            story.notes.append("without the cache, padding at the ends of pieces looks like tokens")
        for split, row, shard, shard_row in rows:
            at = 0
            for piece in pieces(self.dataset, row, split):
                if piece.doc_id == found.doc_id:
                    piece_only = _without_padding(piece, found.tokens, one)
                    story.standings.append(Standing(split, row, shard, shard_row, at, piece_only))
                at += len(piece.ids) + piece.padding
        story.standings.sort(key=lambda standing: (standing.piece.start, standing.split, standing.row))
        self._fill(story, one)
        if self._table is not None:
            story.copies = int(self._table.copies[found.doc_id])
            story.cuts = _cuts(story.stretches, self._table.at(slice(found.doc_id, found.doc_id + 1)))
        return story

    def _dropped(self, cached: CachedParts, address: Address, one: EncodedDocument) -> Story:
        story = self._begin(address, one.doc_id, "dropped", total=len(one.ids))
        if not self.dataset.manifest.preference:
            self._fill(story, one)
        if self._table is None:
            story.detail = "_run/documents.arrow, which says why, is gone or damaged; run again"
            return story
        code = int(self._table.outcome[one.doc_id])
        story.reason = REASONS[code] if code < len(REASONS) else ""
        story.detail = cause_of(story.reason)
        if story.reason in (UNPROVED, MIXED) and (why := cached.unproved_detail(one)):
            story.detail += f": {why}"
        if story.reason == "duplicate":
            twin = _twin(self._table, one.doc_id)
            packed = self._documents.by_number(twin) if twin is not None else None
            story.twin = packed.id if packed is not None else f"document {twin}" if twin is not None else ""
        return story

    def _unpacked(self, address: Address, asked: str) -> Story:
        """Return the story of an id that documents.parquet lacks: left out, rejected, never made, or wrong."""
        part = self.cached.of_row(address) if self.cached is not None else None
        subs = [_address_of(one).sub for one in self._documents.of_line(address)]
        if part is not None and self.cached is not None:
            made = {sub: doc_id for doc_id, sub in self.cached.documents_of_row(*part)}
            if address.sub in made:
                return self._dropped(self.cached, address, self.cached.document(made[address.sub]))
            subs = list(made)
        story = self._begin(address, None, "rejected")
        entry = _rejected(self.dataset, address)
        if entry is not None:
            story.reason, story.detail = entry["reason"], entry["detail"]
            return story
        if subs:
            ids = [Address(address.source, address.file, address.line, sub).id for sub in subs]
            shown = ", ".join(map(escape_line, ids[:_LISTED])) + (", …" if len(ids) > _LISTED else "")
            raise InputError(
                f"there is no example {escape_line(asked)} in {self.dataset.store.url}; its row gave {shown}"
            )
        item = story.origin.item
        if story.origin.state == "unknown":
            raise self._documents.refuse(asked)
        if story.origin.state == "not taken":
            story.state, story.detail = "not taken", story.origin.said
        elif isinstance(item, bytes) and not item.strip():
            story.state, story.detail = "blank", "the line is blank"
        elif self.cached is None:
            story.state, story.detail = "dropped", "the reason is unknown, because the cache is gone"
        else:
            story.state = "left out"
            story.detail = (
                "no example was made of its row: it is blank, its format or a condition leaves it out, or it is a "
                "reject that rejects.jsonl only counts; the ledger has the numbers"
            )
        return story

    def _begin(self, address: Address, doc_id: int | None, state: str, total: int = 0) -> Story:
        origin = source_row(self._files.get((address.source, address.file)), address)
        policy, notes = str(self._mask(address).policy), list(self._notes)
        return Story(address, self.dataset.store.url, doc_id, origin, state, total=total, policy=policy, notes=notes)

    def _fill(self, story: Story, one: EncodedDocument | None) -> None:
        found = [standing.piece for standing in story.standings]
        story.stretches = stretches_of(story.total, found, one, self._mask(story.address), self._decoder)

    def _mask(self, address: Address) -> Mask:
        """The mask of an example's source.

        Raises:
            IntegrityError: the manifest has no such source.
        """
        if address.source not in self._masks:
            raise IntegrityError(
                f"the manifest of {self.dataset.store.url} has no source {escape_line(address.source)}; "
                "run packtrain verify"
            )
        return self._masks[address.source]

    def _find_decoder(self, folder: Path | None) -> Decoder | None:
        spec = recall_spec(self.cached.store, self._plan) if folder is None and self.cached is not None else None
        if spec is not None:
            return Decoder.of_json(spec.tokenizer.json)
        place = folder or tokenizer_folder(self.dataset.store)
        if place is not None:
            return load_decoder(place)
        self._notes.append("the run's tokenizer was not found; give its folder with --tokenizer to see text")
        return None

    def _address(self, id: str) -> Address:
        """Return the address of an id, with the file's name as the run knows it.

        Raises:
            InputError: it is not an id, or names no input of the run.
        """
        address = parse_id(id)
        labels = {(one["source"], one["file"]) for one in self._plan["inputs"]}
        if address is not None and address.line > 0:
            for label in (address.file, _without_suffix(address.file)):  # with the suffix, as in rejects.jsonl
                if (address.source, label) in labels:
                    return replace(address, file=label)
        raise self._documents.refuse(id)


def _open_table(dataset: Finished, cached: CachedParts | None) -> Table | None:
    """Map what the run decided about its documents; None if that is gone, damaged, or of another run."""
    try:
        documents, _ = open_table(dataset.store.local(TABLE))
    except (PacktrainError, OSError, ValueError, KeyError):  # of another version
        return None
    return documents if cached is not None and len(documents) == cached.count else None


def _rows_of(dataset: Finished, doc_id: int) -> Iterator[tuple[str, int, str, int]]:
    """Yield (split, row, shard, row of the shard) of each row with a document.

    Raises:
        IntegrityError: a shard is missing or damaged, or no row has the document.
    """
    found = False
    for split, record in dataset.manifest.splits.items():
        first = 0
        for shard in record.shards:
            row = 0
            for batch in dataset.batches(shard):
                column = batch.column("doc_ids")
                here = np.flatnonzero(view(column.values) == doc_id)
                for one in np.unique(np.searchsorted(view(column.offsets), here, side="right") - 1).tolist():
                    found = True
                    yield split, first + row + one, shard.name, row + one
                row += batch.num_rows
            first += shard.rows
    if not found:
        raise IntegrityError(
            f"document {doc_id:,} is listed, but no shard of {dataset.store.url} contains it; run packtrain verify"
        )


def _without_padding(piece: Piece, count: int, one: EncodedDocument | None) -> Piece:
    """The piece up to where its document, of `count` tokens, ends or goes on differently."""
    length = min(len(piece.ids), count - piece.start)
    if one is not None:
        same = np.array(piece.ids[:length]) == np.array(one.ids[piece.start : piece.start + length])
        length = length if same.all() else int(np.argmin(same))
    weights = piece.weights[:length] if piece.weights is not None else None
    return replace(piece, ids=piece.ids[:length], labels=piece.labels[:length], weights=weights)


def _cuts(stretches: Sequence[Stretch], one: Table) -> list[CutTokens]:
    """The tokens of a packed document that the limits cut, and those of pieces that are left out.

    Args:
        one: the document's row of the table.
    """
    prompt, low, high, total = (int(column[0]) for column in (one.prompt_cut, one.low, one.high, one.length))
    completion = total - int(one.completion_cut[0])
    cuts = [
        CutTokens(0, prompt, "truncate.max_prompt_length"),
        CutTokens(prompt, low, "truncate.max_length"),
        CutTokens(high, completion, "truncate.max_length"),
        CutTokens(completion, total, "truncate.max_completion_length"),
    ]
    for cut in stretches:
        if cut.fate is TokenFate.CUT:
            begin, end = max(cut.begin, low), min(cut.begin + len(cut.ids), high)
            cuts.append(CutTokens(begin, end, "a piece in which nothing would be trained"))
    return sorted((cut for cut in cuts if cut.begin < cut.end), key=lambda cut: cut.begin)


def _twin(documents: Table, doc_id: int) -> int | None:
    """The earlier document that a duplicate repeats."""
    same = documents.first_digest == documents.first_digest[doc_id]
    same &= documents.second_digest == documents.second_digest[doc_id]
    same &= (documents.outcome == 0) | (documents.outcome == REASONS.index(NOT_DRAWN))
    first = np.flatnonzero(same)
    return int(first[0]) if len(first) else None


def _rejected(dataset: Finished, address: Address) -> dict[str, Any] | None:
    """Return the entry of an example in the rejects file, or of its whole row; None if there is neither."""
    data = dataset.store.read(REJECTS) or b""
    whole = None
    needle = f'"line":{address.line},'.encode()
    for line in data.splitlines():
        if needle not in line:
            continue
        entry: dict[str, Any] = decode_note(line, dict[str, Any])
        labels = (entry["file"], _without_suffix(entry["file"]))
        if entry["source"] != address.source or address.file not in labels or entry["reason"] == "more":
            continue
        if entry.get("example", -1) == address.sub:
            return entry
        if "example" not in entry:
            whole = entry
    return whole


def _without_suffix(file: str) -> str:
    """The name of a file in ids, from its name in rejects, which has the suffix."""
    folder, slash, name = file.rpartition("/")
    return f"{folder}{slash}{split_name(name)[0]}"


def _address_of(document: PackedDocument) -> Address:
    stem = f"{document.source}/{document.file}:{document.line}"
    rest = document.id.removeprefix(stem).removeprefix("/")
    return Address(document.source, document.file, document.line, int(rest) if rest else -1)
