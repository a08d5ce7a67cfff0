"""One example followed through all its stages: source row, example, rendered text, tokens, and what became of it.

Each stage is taken from what the folder and the cache still hold. What is gone is said to be gone; nothing is guessed.
"""

from collections.abc import Sequence
from pathlib import Path

from ..schemas.config import RunConfig
from ..schemas.errors import InputError
from ..schemas.escape import escape_line
from .configfile import load_config
from .follow_cache import CachedParts, EncodedDocument, Spot, open_parts
from .follow_fate import cuts_of, decide, rejected
from .follow_ids import Address, Document, Documents, parse_id
from .follow_origin import Inputs, Origin, State
from .follow_rows import Standing, find_pair, find_standings
from .follow_stages import Stages
from .inputs.blocks import split_name
from .parts import UNPROVED
from .reader import Finished
from .story import Story

_LISTED = 20


class Follower:
    """Follows examples of one finished dataset.

    Args:
        tokenizer: a folder whose tokenizer gives tokens their text; by default the run's.
        config: the run's configuration. A source that a person's own function reads needs it: such code is run only
            where a person names it.

    Raises:
        ConfigError: from every method: it needs `config`.
        InputError: from every method: there is no such example; the nearest ids are named.
        IntegrityError: from every method: a file of the folder is missing or damaged.
    """

    def __init__(self, dataset: Finished, tokenizer: Path | None = None, config: Path | None = None) -> None:
        self.dataset = dataset
        self.config = config_of(dataset)
        self.documents = Documents(dataset)
        opened = open_parts(dataset, self.documents)
        self.cached = opened if isinstance(opened, CachedParts) else None
        self.inputs = Inputs(dataset, self.config, self.cached, load_config(config) if config is not None else None)
        self.stages = Stages(dataset, self.config, self.inputs, self.cached, tokenizer)
        self.notes = [opened] if isinstance(opened, str) else []
        self.notes += self.stages.notes

    def by_id(self, id: str) -> Story:
        """The story of an id."""
        found = self.documents.by_id(id)
        if found is None:
            address = self._address(id)
            found = self.documents.by_id(address.id)
            if found is None:
                return self._unpacked(address, id)
        return self._packed(found)

    def by_number(self, doc: int) -> Story:
        """The story of a doc id."""
        found = self.documents.by_number(doc)
        if found is not None:
            return self._packed(found)
        cached = self.cached
        if cached is None:
            raise InputError(
                f"no packed document of {self.dataset.store.url} has the doc id {doc:,}, and of the others nothing is "
                f"known: {self.notes[0]}. documents.parquet lists the packed ones"
            )
        if not 0 <= doc < cached.count:
            raise InputError(
                f"there is no document {doc:,} in {self.dataset.store.url}; doc ids are 0 to {cached.count - 1:,}"
            )
        one = cached.document(cached.of_document(doc), doc)
        source, spot = self._located(doc)
        if spot is not None:
            return self._dropped(Address(source, spot.file, spot.first_line + one.line + 1, one.sub), one, spot)
        unknown = Origin(State.UNKNOWN, "", "the folder does not say any more which file it came from")
        return self._decided(self._begin(Address(source, "?", 0, one.sub), doc, unknown, "dropped"), one)

    def _packed(self, found: Document) -> Story:
        address = _address_of(found)
        one = spot = None
        if self.cached is not None:
            spot = self.cached.spot_of_document(found.doc_id)
            assert spot is not None
            one = self.cached.document(spot.part, found.doc_id)
        story = self._begin(address, found.doc_id, self.inputs.row(address, spot), "packed")
        story.group, story.total = found.group, found.tokens
        if self.dataset.manifest.preference:
            return self._pair(story)
        story.standings, by_layout = find_standings(self.dataset, found.doc_id, found.tokens)
        story.copies = _copies(found.tokens, story.standings)
        if not by_layout:
            story.notes.append("the layout of the run is gone: its places were found by looking through the shards")
            if self.config.pack.align > 1:
                story.notes.append("alignment padding at the ends of pieces cannot be told from tokens without it")
        self.stages.fill(story, one)
        if one is not None and self.cached is not None:
            story.cuts = cuts_of(self.config, self.cached, one, story.standings)
        return story

    def _pair(self, story: Story) -> Story:
        """A preference pair is shown by its row, where its three parts stand."""
        self.stages.example(story)
        assert story.doc_id is not None
        split, row = find_pair(self.dataset, story.doc_id)
        story.state, story.row = "a preference pair, not packed", (split, row)
        return story

    def _dropped(self, address: Address, one: EncodedDocument, spot: Spot) -> Story:
        return self._decided(self._begin(address, one.doc_id, self.inputs.row(address, spot), "dropped"), one)

    def _decided(self, story: Story, one: EncodedDocument) -> Story:
        assert self.cached is not None
        story.total, story.group = len(one.ids), one.group
        if self.dataset.manifest.preference:
            self.stages.example(story)
            story.detail = "a preference pair; the ledger says how many were left out for which reasons"
            return story
        self.stages.fill(story, one)
        decision = decide(self.dataset, self.config, self.cached, one)
        story.reason, story.detail = decision.reason, decision.detail
        if decision.reason == UNPROVED and story.text is not None and story.text.unproved:
            story.detail = f"{decision.detail}: {story.text.unproved}"
        if decision.twin is not None:
            twin = self.documents.by_number(decision.twin)
            story.twin = twin.id if twin is not None else f"document {decision.twin}"
        return story

    def _unpacked(self, address: Address, asked: str) -> Story:
        """An id that documents.parquet does not have: dropped, rejected, never made, or wrong."""
        entry = rejected(self.dataset, address)
        spot = self._spot(address)
        here: list[tuple[int, int]] = []
        if spot is not None and self.cached is not None:
            here = self.cached.documents_of_line(spot.part, address.line - 1 - spot.first_line)
            mine = next((doc_id for doc_id, sub in here if sub == address.sub), None)
            if mine is not None:
                return self._dropped(address, self.cached.document(spot.part, mine), spot)
        subs = [sub for _, sub in here] or [_address_of(one).sub for one in self.documents.of_line(address)]
        if entry is None:
            self._refuse_sub(address, asked, subs)
        story = self._begin(address, None, self.inputs.row(address, spot), "rejected")
        if entry is not None:
            story.reason, story.detail = entry["reason"], entry["detail"]
            self.stages.example(story)
            return story
        return self._never_made(story, asked, spot)

    def _never_made(self, story: Story, asked: str, spot: Spot | None) -> Story:
        """A row that gave no such document: what prep says of it now, if the row is as it was."""
        prepared = self.stages.prepared(story)
        if story.origin.item is None or prepared is None:
            refusal = self.documents.refuse(asked)
            if story.origin.state is State.SAME or story.origin.past_end:
                raise refusal
            raise InputError(f"{refusal}. What else became of its row is not known: {escape_line(story.origin.said)}")
        mine = next((one for one in prepared.examples if one.sub == story.address.sub), None)
        limited = next(one.max_rows for one in self.config.sources if one.name == story.address.source) is not None
        if prepared.blank:
            story.state, story.detail = "blank", "the line is blank"
        elif prepared.rejects:
            _, story.reason, story.detail = prepared.rejects[0]
        elif prepared.filtered:
            story.state, story.reason = "filtered", next(iter(prepared.filtered))
            story.detail = "its row is well formed but not wanted"
        elif mine is not None:
            story.example, story.state = mine, "dropped"
            story.detail = "the folder does not say why: the cache is gone, which would"
            if spot is not None:
                story.state, story.detail = "rejected", "rejects.jsonl says so of many rows, and counts this one only"
            elif limited and self.cached is not None:
                story.state, story.detail = "not taken", "its row lies beyond the source's max_rows"
        else:
            self._refuse_sub(story.address, asked, [one.sub for one in prepared.examples])
            if not prepared.skipped:
                raise self.documents.refuse(asked)
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(prepared.skipped.items()))
            story.state, story.reason = "skipped", reasons
            story.detail = "of its row, so many were left out before examples were made"
        return story

    def _refuse_sub(self, address: Address, asked: str, subs: Sequence[int]) -> None:
        """Refuse an id without a number of a row that gave several examples, or one with a number of a single one."""
        if not subs or (address.sub >= 0 and set(subs) != {-1}):
            return
        ids = [Address(address.source, address.file, address.line, sub).id for sub in subs]
        shown = ", ".join(map(escape_line, ids[:_LISTED])) + (", …" if len(ids) > _LISTED else "")
        raise InputError(f"there is no example {escape_line(asked)} in {self.dataset.store.url}; its row gave {shown}")

    def _begin(self, address: Address, doc_id: int | None, origin: Origin, state: str) -> Story:
        story = Story(address, self.dataset.store.url, doc_id, origin, state)
        story.notes += self.notes
        story.policy = self.config.mask.policy
        return story

    def _located(self, doc: int) -> tuple[str, Spot | None]:
        """(source, where it stands) of a document that was not packed; a guess is held against the input."""
        assert self.cached is not None
        index = self.cached.of_document(doc)
        source = self.config.sources[self.cached.parts[index].source].name
        spot = self.cached.spot_of_document(doc)
        if spot is not None and (spot.sure or self._holds(Address(source, spot.file, spot.first_line + 1), spot)):
            return source, spot
        return source, self.inputs.spot_of_part(source, index)

    def _spot(self, address: Address) -> Spot | None:
        """The block of a row, where the cache has it."""
        if self.cached is None:
            return None
        number = [one.name for one in self.config.sources].index(address.source)
        spot = self.cached.spot_of_line(address, number)
        if spot is not None and (spot.sure or self._holds(address, spot)):
            return spot
        return self.inputs.spot_of_line(address)

    def _holds(self, address: Address, spot: Spot) -> bool:
        return self.inputs.row(address, spot).state is State.SAME

    def _address(self, id: str) -> Address:
        """The address that an id says, its file named as the run names it.

        Raises:
            InputError: it is no id, or names no input of the run.
        """
        address = parse_id(id)
        labels = {(one["source"], one["file"]) for one in self.dataset.manifest.plan["inputs"]}
        if address is not None and address.line > 0:
            if (address.source, address.file) in labels:
                return address
            folder, slash, name = address.file.rpartition("/")
            short = f"{folder}{slash}{split_name(name)[0]}"  # as rejects.jsonl shows it, with the suffix
            if (address.source, short) in labels:
                return Address(address.source, short, address.line, address.sub)
        raise self.documents.refuse(id)


def config_of(dataset: Finished) -> RunConfig:
    """The configuration of a finished run, as far as it is part of its identity: no paths, nothing of machines.

    Raises:
        InputError: another version of packtrain wrote it.
    """
    plan = dataset.manifest.plan["config"]
    data = {
        **plan,
        "out": str(dataset.store.url),
        "tokenizer": {**plan["tokenizer"], "path": "-"},
        "sources": [{**source, "path": "-"} for source in plan["sources"]],
    }
    try:
        return RunConfig.model_validate(data)
    except ValueError as error:
        raise InputError(
            f"{dataset.store.url} was made by another version of packtrain, whose configuration is not understood "
            f"here ({error}); ask that version, or make the dataset anew"
        ) from error


def _address_of(document: Document) -> Address:
    stem = f"{document.source}/{document.file}:{document.line}"
    rest = document.id.removeprefix(stem).removeprefix("/")
    return Address(document.source, document.file, document.line, int(rest) if rest else -1)


def _copies(tokens: int, standings: Sequence[Standing]) -> int:
    """How often a document is packed: overlaps apart, each copy has a token once."""
    stands = [0] * (tokens + 1)
    for standing in standings:
        stands[standing.start + (standing.repeated or 0)] += 1
        stands[min(standing.start + len(standing.ids), tokens)] -= 1
    most = running = 0
    for change in stands:
        running += change
        most = max(most, running)
    return most
