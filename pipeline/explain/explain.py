"""Follows one example through all stages: source row, example, rendered text, tokens, and what happened to it.

Each stage is shown from what the folder and the cache still have. What is missing is reported as missing, never
guessed.
"""

from collections.abc import Sequence
from pathlib import Path

from ...schemas.config.config import RunConfig
from ...schemas.errors import InputError
from ...schemas.escape import escape_line
from ...stages.tokenize.encode import MIXED, UNPROVED
from ..configfile import load_config
from ..dataset.cached_parts import CachedParts, EncodedDocument, open_parts
from ..dataset.documents import Address, PackedDocument, PackedDocuments, parse_id
from ..dataset.open import Finished
from ..inputs.blocks import split_name
from .fate import cuts_of, decide, open_documents, rejected
from .packed_rows import Standing, find_pair, find_standings
from .source_row import Inputs
from .stages import Stages
from .story import Story

_LISTED = 20


class Follower:
    """Follows examples of one finished dataset.

    Args:
        tokenizer: the folder of the tokenizer that turns tokens into text; by default the run's.
        config: the run's configuration. It is needed for sources with a reader function, because code runs only if the
        user names it.

    All methods may raise:
        ConfigError: `config` is needed.
        InputError: there is no such example; the message names the nearest ids.
        IntegrityError: a file of the folder is missing or damaged.
    """

    def __init__(self, dataset: Finished, tokenizer: Path | None = None, config: Path | None = None) -> None:
        self.dataset = dataset
        self.config = config_of(dataset)
        self.documents = PackedDocuments(dataset)
        opened = open_parts(dataset)
        self.cached = opened if isinstance(opened, CachedParts) else None
        self.decided = open_documents(dataset, self.cached.count) if self.cached is not None else None
        self.inputs = Inputs(dataset, self.config, self.cached.scratch if self.cached is not None else None)
        given = load_config(config) if config is not None else None
        self.stages = Stages(dataset, self.config, given, self.cached, tokenizer)
        self.notes = [opened] if isinstance(opened, str) else []
        self.notes += self.stages.notes

    def by_id(self, id: str) -> Story:
        """Return the story of an example, by its id."""
        found = self.documents.by_id(id)
        if found is None:
            address = self._address(id)
            found = self.documents.by_id(address.id)
            if found is None:
                return self._unpacked(address, id)
        return self._packed(found)

    def by_number(self, doc: int) -> Story:
        """Return the story of an example, by its doc id."""
        found = self.documents.by_number(doc)
        if found is not None:
            return self._packed(found)
        cached = self.cached
        if cached is None:
            raise InputError(
                f"no packed document of {self.dataset.store.url} has the doc id {doc:,}, and documents that are not "
                f"packed cannot be found: {self.notes[0]}. documents.parquet lists the packed documents"
            )
        if not 0 <= doc < cached.count:
            raise InputError(
                f"there is no document {doc:,} in {self.dataset.store.url}; doc ids are 0 to {cached.count - 1:,}"
            )
        one, part = cached.document(doc), cached.of_document(doc)
        file, line = part.file.at(part.block, one.line)
        address = Address(file.source, file.label, line, one.sub)
        return self._dropped(address, one)

    def _packed(self, found: PackedDocument) -> Story:
        address = _address_of(found)
        one = self.cached.document(found.doc_id) if self.cached is not None else None
        story = self._begin(address, found.doc_id, "packed")
        story.group, story.total = found.group, found.tokens
        if self.dataset.manifest.preference:
            return self._pair(story)
        story.standings, by_layout = find_standings(self.dataset, found.doc_id, found.tokens)
        story.copies = _copies(found.tokens, story.standings)
        if not by_layout:
            story.notes.append("the run's layout is gone, so the shards were searched instead")
            if self.config.pack.align > 1 and self.config.pack.parallel is None:
                story.notes.append("without the layout, padding at the ends of pieces looks like tokens")
        self.stages.fill(story, one)
        if one is not None and self.cached is not None:
            story.cuts = cuts_of(self.decided, one, story.standings)
        return story

    def _pair(self, story: Story) -> Story:
        """Fill in the story of a preference pair; its row has all three parts."""
        self.stages.example(story)
        assert story.doc_id is not None
        split, row = find_pair(self.dataset, story.doc_id)
        story.state, story.row = "a preference pair, not packed", (split, row)
        return story

    def _dropped(self, address: Address, one: EncodedDocument) -> Story:
        story = self._begin(address, one.doc_id, "dropped")
        assert self.cached is not None
        story.total, story.group = len(one.ids), one.group
        if self.dataset.manifest.preference:
            self.stages.example(story)
            story.detail = "a preference pair; the ledger counts the pairs left out by reason"
            return story
        self.stages.fill(story, one)
        decision = decide(self.decided, one.doc_id)
        story.reason, story.detail = decision.reason, decision.detail
        if decision.reason in (UNPROVED, MIXED) and story.text is not None and story.text.unproved:
            story.detail = f"{decision.detail}: {story.text.unproved}"
        if decision.twin is not None:
            twin = self.documents.by_number(decision.twin)
            story.twin = twin.id if twin is not None else f"document {decision.twin}"
        return story

    def _unpacked(self, address: Address, asked: str) -> Story:
        """Return the story of an id that documents.parquet lacks: dropped, rejected, never made, or wrong."""
        entry = rejected(self.dataset, address)
        part = self.cached.of_row(address) if self.cached is not None else None
        here: list[tuple[int, int]] = []
        if part is not None and self.cached is not None:
            here = self.cached.documents_of_row(*part)
            mine = next((doc_id for doc_id, sub in here if sub == address.sub), None)
            if mine is not None:
                return self._dropped(address, self.cached.document(mine))
        subs = [sub for _, sub in here] or [_address_of(one).sub for one in self.documents.of_line(address)]
        if entry is None:
            self._refuse_sub(address, asked, subs)
        story = self._begin(address, None, "rejected")
        if entry is not None:
            story.reason, story.detail = entry["reason"], entry["detail"]
            self.stages.example(story)
            return story
        return self._never_made(story, asked)

    def _never_made(self, story: Story, asked: str) -> Story:
        """Return the story of a row that gave no such document. Prep runs on the row again, if it is unchanged."""
        prepared = self.stages.prepared(story)
        if prepared is None:
            refusal = self.documents.refuse(asked)
            if story.origin.past_end:
                raise refusal
            raise InputError(f"{refusal}. What happened to its row is unknown: {escape_line(story.origin.said)}")
        mine = next((one for one in prepared.examples if one.sub == story.address.sub), None)
        if prepared.blank:
            story.state, story.detail = "blank", "the line is blank"
        elif prepared.rejects:
            _, story.reason, story.detail = prepared.rejects[0]
        elif prepared.filtered:
            story.state, story.reason = "filtered", next(iter(prepared.filtered))
            story.detail = "its row is valid, but a filter excludes it"
        elif mine is not None:
            story.example, story.state = mine, "dropped"
            story.detail = "the reason is unknown, because the cache is gone"
            if not self.inputs.taken(story.address):
                story.state, story.detail = "not taken", "its row lies beyond the source's max_rows"
            elif self.cached is not None:
                story.state, story.detail = "rejected", "rejects.jsonl counts this row without listing it"
        else:
            self._refuse_sub(story.address, asked, [one.sub for one in prepared.examples])
            if not prepared.skipped:
                raise self.documents.refuse(asked)
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(prepared.skipped.items()))
            story.state, story.reason = "skipped", reasons
            story.detail = "left out of its row before examples were made"
        return story

    def _refuse_sub(self, address: Address, asked: str, subs: Sequence[int]) -> None:
        """Refuse an id without a number if its row gave several examples, and an id with a number if it gave only
        one.
        """
        if not subs or (address.sub >= 0 and set(subs) != {-1}):
            return
        ids = [Address(address.source, address.file, address.line, sub).id for sub in subs]
        shown = ", ".join(map(escape_line, ids[:_LISTED])) + (", …" if len(ids) > _LISTED else "")
        raise InputError(f"there is no example {escape_line(asked)} in {self.dataset.store.url}; its row gave {shown}")

    def _begin(self, address: Address, doc_id: int | None, state: str) -> Story:
        story = Story(address, self.dataset.store.url, doc_id, self.inputs.row(address), state)
        story.notes += self.notes
        story.policy = self.config.mask.policy
        return story

    def _address(self, id: str) -> Address:
        """Return the address of an id, with the file's name as the run knows it.

        Raises:
            InputError: it is not an id, or names no input of the run.
        """
        address = parse_id(id)
        labels = {(one["source"], one["file"]) for one in self.dataset.manifest.plan["inputs"]}
        if address is not None and address.line > 0:
            if (address.source, address.file) in labels:
                return address
            folder, slash, name = address.file.rpartition("/")
            short = f"{folder}{slash}{split_name(name)[0]}"  # with the suffix, as in rejects.jsonl
            if (address.source, short) in labels:
                return Address(address.source, short, address.line, address.sub)
        raise self.documents.refuse(id)


def config_of(dataset: Finished) -> RunConfig:
    """Return the configuration of a finished run from its plan, which has no paths and no settings of the machine.

    Raises:
        InputError: another version of packtrain wrote it.
    """
    plan = dataset.manifest.plan["config"]
    data = {
        **plan,
        "out": str(dataset.store.url),
        "tokenizer": {**plan["tokenizer"], "path": "-"},
        "sources": [{**source, "path": "-"} for source in plan["sources"]],
        "decontaminate": {**plan["decontaminate"], "against": "-"} if plan["decontaminate"] else None,
    }
    try:
        return RunConfig.model_validate(data)
    except ValueError as error:
        raise InputError(
            f"{dataset.store.url} was made by another version of packtrain, and this one cannot read its configuration "
            f"({error}); use that version, or make the dataset again"
        ) from error


def _address_of(document: PackedDocument) -> Address:
    stem = f"{document.source}/{document.file}:{document.line}"
    rest = document.id.removeprefix(stem).removeprefix("/")
    return Address(document.source, document.file, document.line, int(rest) if rest else -1)


def _copies(tokens: int, standings: Sequence[Standing]) -> int:
    """Return how often a document is packed: the most pieces that contain the same token, not counting overlaps."""
    stands = [0] * (tokens + 1)
    for standing in standings:
        stands[standing.start + (standing.repeated or 0)] += 1
        stands[min(standing.start + len(standing.ids), tokens)] -= 1
    most = running = 0
    for change in stands:
        running += change
        most = max(most, running)
    return most
