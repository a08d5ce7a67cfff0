"""Packed preference pairs from files to batches: every pair once, on any ranks, in every form, and in streams."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from packtrain.schemas.errors import AttentionError, ConfigError, InputError
from packtrain.training import (
    PackedLoader,
    PackedStream,
    document_logps,
    predicting_positions,
    preference_loss,
    probe,
    reference_logps,
    use_packed,
)
from packtrain.training.preference.losses import DocumentLogps

from tests import kit
from tests.training.trainer.tiny_models import make

Side = tuple[tuple[int, ...], int]
"""The tokens of a side, prompt and completion, and how many of them are trained."""
ALONE: dict[str, Any] = {"rank": 0, "world_size": 1}
torch.set_num_threads(1)


class Folders(NamedTuple):
    packed: Path
    shared: Path
    """Each prompt stored once."""
    plain: Path
    """Not packed."""
    config: kit.Config
    pairs: Counter[tuple[Side, Side]]
    """Of the rows that are not packed: the chosen and the rejected side of each."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("choices")
    kit.write(root / "choices.jsonl", kit.corpus("choices", 60))
    config = kit.configure(root, "choices", truncate={"max_length": 512, "overlong": "drop"})
    packs = {"packed": {"strategy": "bfd"}, "shared": {"share": "row"}, "plain": {"strategy": "none"}}
    made = {
        name: kit.packed(kit.merged(config, {"out": str(root / name), "pack": pack})) for name, pack in packs.items()
    }
    pairs = unpacked_pairs(made["plain"])
    assert len(made["packed"].rows()) < 0.6 * pairs.total()
    return Folders(made["packed"].folder, made["shared"].folder, made["plain"].folder, config, pairs)


def unpacked_pairs(packed: kit.Packed) -> Counter[tuple[Side, Side]]:
    """The pairs of rows that are not packed. Without a prompt, the first token of a side cannot be trained."""
    pairs: Counter[tuple[Side, Side]] = Counter()
    for row in packed.rows():
        prompt = row["prompt_ids"]
        chosen, rejected = (
            (tuple(prompt + row[name]), len(row[name]) - (not prompt)) for name in ("chosen_ids", "rejected_ids")
        )
        pairs[chosen, rejected] += 1
    return pairs


def sides_of(batch: dict[str, Any]) -> list[tuple[int, Side]]:
    """(side, its tokens and how many are trained) of a batch in any form."""
    if "attention_mask" in batch:
        lengths = batch["attention_mask"].sum(1).tolist()
        ids = [row[:length] for row, length in zip(batch["input_ids"].tolist(), lengths, strict=True)]
        labels = [row[:length] for row, length in zip(batch["labels"].tolist(), lengths, strict=True)]
    elif "paths" in batch:
        flat, flat_labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
        places = [batch["paths"][a:b].tolist() for a, b in pairwise(batch["cu_paths"].tolist())]
        ids = [[flat[place] for place in path] for path in places]
        # The labels of a prompt that a path goes through are the other side's.
        labels = [flat_labels[a:b] for a, b in pairwise(batch["cu_pieces"].tolist())]
    else:
        bounds = list(pairwise(batch["cu_seq_lens_q"].tolist()))
        ids = [batch["input_ids"][0, a:b].tolist() for a, b in bounds]
        labels = [batch["labels"][0, a:b].tolist() for a, b in bounds]
    trained = [sum(label != -100 for label in row) for row in labels]
    tokens = [tuple(row) for row in ids]
    return list(zip(batch["sides"].tolist(), zip(tokens, trained, strict=True), strict=True))


def pairs_of(batches: list[dict[str, Any]]) -> Counter[tuple[Side, Side]]:
    """The pairs of batches; padding and rows that only fill up a step are in none."""
    found: Counter[tuple[Side, Side]] = Counter()
    for batch in batches:
        sides = [(side, content) for side, content in sides_of(batch) if side >= 0]
        assert [side for side, _ in sides] == [0, 1] * (len(sides) // 2)
        assert all(trained == 0 for side, (_, trained) in sides_of(batch) if side < 0)
        found.update((chosen, rejected) for (_, chosen), (_, rejected) in zip(sides[::2], sides[1::2], strict=True))
    return found


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("options", [{}, {"static_shapes": True}, {"unpacked": True}, {"accumulate": 2}])
def test_every_pair_comes_once(folders: Folders, options: dict[str, Any], world_size: int) -> None:
    rows = len(kit.Packed(folders.packed).rows())
    assert rows % 6, "the last step is filled up"
    batches = [
        batch
        for rank in range(world_size)
        for batch in PackedLoader(
            folders.packed, rows_per_step=6, tail="pad", rank=rank, world_size=world_size, **options
        )
    ]
    assert any((batch["sides"] == -1).any() for batch in batches)
    assert pairs_of(batches) == folders.pairs


@pytest.mark.parametrize("unpacked", [False, True])
def test_prompts_that_are_stored_once_are_whole(folders: Folders, unpacked: bool) -> None:
    attention = use_packed(make("Llama"))
    batches = list(
        PackedLoader(folders.shared, rows_per_step=2, tail="pad", attention=attention, unpacked=unpacked, **ALONE)
    )
    assert pairs_of(batches) == folders.pairs


def test_prompts_that_are_stored_once_have_the_same_reference(folders: Folders, tmp_path: Path) -> None:
    model = make("Llama", vocab_size=3200, max_position_embeddings=512)
    attention = use_packed(model)

    def logps_of(batch: dict[str, Any]) -> torch.Tensor:
        inputs = {name: value for name, value in batch.items() if name not in ("labels", "sides")}
        logits = model(**inputs, logits_to_keep=predicting_positions(batch)).logits[0]
        return document_logps(logits, batch).sums

    values: list[dict[Side, float]] = []
    for folder in (folders.packed, folders.shared):
        loader = PackedLoader(folder, rows_per_step=1, attention=attention, **ALONE)
        loader.reference = reference_logps(model, loader, tmp_path / folder.name, logps_of)
        values.append({})
        for batch in loader:
            contents = [content for _, content in sides_of(batch)]
            values[-1].update(zip(contents, batch["reference"].tolist(), strict=True))
    plain, shared = values
    assert plain.keys() == shared.keys()
    assert len(plain) == 2 * folders.pairs.total()
    assert [shared[side] for side in plain] == pytest.approx(list(plain.values()), rel=1e-5)


def test_prompts_that_are_stored_once_need_attention_that_follows_them(folders: Folders, tmp_path: Path) -> None:
    model = make("Llama", vocab_size=3200, attention="sdpa")
    loader = PackedLoader(folders.shared, rows_per_step=1, attention=use_packed(model), **ALONE)
    use_packed(model, "sdpa")
    with pytest.raises(ConfigError, match="attention: sdpa does not know them"):
        reference_logps(model, loader, tmp_path / "reference.arrow", lambda batch: batch["sides"].double())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("share", ["none", "row"])
def test_streams_give_the_same_pairs(folders: Folders, share: str) -> None:
    config = kit.saved(kit.merged(folders.config, {"pack": {"share": share}}), f"{share}.json")
    found: Counter[tuple[Side, Side]] = Counter()
    for rank in (0, 1):
        stream = PackedStream(
            config, rows_per_step=4, rank=rank, world_size=2, tail="pad", workers=1, attention=use_packed(make("Llama"))
        )
        found += pairs_of(list(stream))
        stream.close()
    assert found == folders.pairs


def test_explain_names_both_sides(folders: Folders) -> None:
    loader = PackedLoader(folders.packed, rows_per_step=3, seed=2, **ALONE)
    for step, batch in enumerate(loader):
        documents = loader.explain(step)
        assert [document.side for document in documents] == batch["sides"].tolist()
        assert [document.tokens for document in documents] == batch["cu_seq_lens_q"].diff().tolist()
        for chosen, rejected in zip(documents[::2], documents[1::2], strict=True):
            assert chosen.id == rejected.id
            assert chosen.doc_id == rejected.doc_id


def test_rows_for_trl_are_refused(folders: Folders) -> None:
    message = r"was packed with pack\.strategy: none, .* or pack with pack\.strategy: bfd"
    with pytest.raises(InputError, match=message):
        PackedLoader(folders.plain, rows_per_step=1, **ALONE)


@pytest.mark.parametrize("kind", ["Llama", "Gemma2"])
def test_a_model_does_not_take_sides(folders: Folders, kind: str) -> None:
    """It would be trained on both alike, by its own loss."""
    model = make(kind, vocab_size=3200, max_position_embeddings=512)
    use_packed(model)
    batch = next(iter(PackedLoader(folders.packed, rows_per_step=1, **ALONE)))
    with pytest.raises(AttentionError, match="would train rejected completions like chosen ones"):
        model(**batch)
    sides = batch.pop("sides")
    assert model(**batch).logits.isfinite().all()
    assert probe(model, batch={**batch, "sides": sides, "reference": sides.double()}).isolated


@pytest.mark.slow
def test_real_pairs_begin_with_ln_2(realdata: Path, tmp_path: Path) -> None:
    """Policy and reference are the same model, so that each pair of each step has the loss ln 2, if and only if its
    reference is its own: here with more rows in a step, in another order, than in the reference's pass.
    """
    source = {"name": "real", "path": str(realdata / "preference" / "dpo_pairs.jsonl"), "format": "preference"}
    config = kit.configure(tmp_path, source, truncate={"max_length": 2048, "keep": "end"}, filter={"max_tokens": 1500})
    folder = kit.packed(config).folder
    model = make("Llama", vocab_size=3200, max_position_embeddings=2048)
    use_packed(model)

    def logps_of(batch: dict[str, Any]) -> DocumentLogps:
        inputs = {name: value for name, value in batch.items() if name not in ("labels", "sides", "reference")}
        with torch.no_grad():
            logits = model(**inputs, logits_to_keep=predicting_positions(batch)).logits[0]
        return document_logps(logits, batch)

    single = PackedLoader(folder, rows_per_step=1, **ALONE)
    reference = reference_logps(model, single, tmp_path / "reference.arrow", lambda batch: logps_of(batch).sums)
    pairs = 0
    for batch in PackedLoader(folder, rows_per_step=4, seed=9, tail="pad", reference=reference, **ALONE):
        sums, counts = logps_of(batch)
        result = preference_loss("dpo", sums, counts, batch["sides"], batch["reference"], beta=0.1)
        assert result.losses.tolist() == pytest.approx([math.log(2)] * result.pairs, abs=1e-12)
        pairs += result.pairs
    assert pairs == kit.Packed(folder).ledger["real"]["examples_packed"]["train"] > 100
