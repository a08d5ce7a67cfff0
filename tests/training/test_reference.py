"""The reference of packed pairs: each document's own log-probability, found again in any order, or refused."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from packtrain.schemas.errors import ConfigError, PacktrainError, StoreError
from packtrain.schemas.tables.columns import COLUMNS
from packtrain.training import PackedLoader, collate, document_logps, predicting_positions, use_packed
from packtrain.training.preference.reference import KEYS, Reference
from packtrain.training.preference.reference_pass import hash_weights, reference_key, reference_logps, stored_reference

from tests import kit
from tests.support import warm
from tests.training.trainer.tiny_models import make

CPU = torch.device("cpu")
ALONE: dict[str, Any] = {"rank": 0, "world_size": 1}
torch.set_num_threads(1)


class Data(NamedTuple):
    """Packed pairs, and the pairs as they are without packing."""

    folder: Path
    pairs: dict[int, tuple[list[int], list[int], list[int]]]
    """Document id → prompt, chosen and rejected completion."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Some thirty rows, a part of them held out."""
    root = tmp_path_factory.mktemp("pairs")
    kit.write(root / "choices.jsonl", kit.corpus("choices", 70))
    config = kit.configure(root, "choices", truncate={"max_length": 256, "keep": "end"}, holdout={"fraction": 0.2})
    packed = kit.packed(kit.merged(config, {"out": str(root / "packed"), "pack": {"strategy": "bfd"}}))
    plain = kit.packed(
        kit.merged(config, {"out": str(root / "plain"), "pack": {"strategy": "none"}, "truncate": {"max_length": 4096}})
    )
    rows = [*plain.rows("train"), *plain.rows("holdout")]
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    return Data(packed.folder, {row["doc_ids"][0]: tuple(row[name] for name in names) for row in rows})


def model_of(seed: int = 0, **changes: Any) -> Any:
    """A small Llama with packtrain's attention."""
    torch.manual_seed(seed)
    model = make("Llama", vocab_size=3200, max_position_embeddings=512, **changes)
    with torch.no_grad():
        for weight in model.parameters():
            if seed and weight.ndim > 1:
                weight.add_(0.01 * seed)
    use_packed(model)
    return model


def forward_of(model: Any) -> Callable[[dict[str, Any]], torch.Tensor]:
    """What a loop computes of a batch: (D,) log-probabilities of documents."""

    def logps_of(batch: dict[str, Any]) -> torch.Tensor:
        others = ("labels", "sides", "reference")
        inputs = {name: value for name, value in batch.items() if name not in others}
        if "attention_mask" in batch:
            return document_logps(model(**inputs).logits, batch).sums
        logits = model(**inputs, logits_to_keep=predicting_positions(batch)).logits[0]
        return document_logps(logits, batch).sums

    return logps_of


def loader(data: Data | Path, rows_per_step: int = 1, **options: Any) -> PackedLoader:
    folder = data.folder if isinstance(data, Data) else data
    return PackedLoader(folder, rows_per_step=rows_per_step, **{"tail": "pad", **ALONE, **options})


@pytest.fixture(scope="module")
def model() -> Any:
    return model_of()


@pytest.fixture(scope="module")
def reference(data: Data, model: Any, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The reference of all rows, computed one by one."""
    file = tmp_path_factory.mktemp("reference") / "reference.arrow"
    return reference_logps(model, loader(data), file, forward_of(model))


# Its values


def test_it_is_each_side_alone(data: Data, model: Any, reference: Reference) -> None:
    """Against the model on one side at a time, by plain tensors."""
    rows = [{COLUMNS[name].usual: value for name, value in row.items()} for row in kit.Packed(data.folder).rows()]
    assert len(rows) > 15
    checked = 0
    for number, row in enumerate(rows):
        values = reference.of_row(number, len(row["seq_lengths"]))
        begin = 0
        for value, length, doc_id, side in zip(values, row["seq_lengths"], row["doc_ids"], row["sides"], strict=True):
            completions = data.pairs[doc_id][1:]
            ids = row["input_ids"][begin : begin + length]
            trained = sum(label != -100 for label in row["labels"][begin : begin + length])
            kept = completions[side][-trained:] if trained < len(completions[side]) else completions[side]
            assert ids[-trained:] == kept
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
            expected = logits.log_softmax(-1)[range(length - 1), ids[1:]][-trained:].sum()
            assert value == pytest.approx(float(expected), rel=1e-5)
            begin += length
            checked += 1
    assert checked == len(reference.logps) > 60


@pytest.mark.parametrize(
    "options",
    [{"rows_per_step": 5}, {"rows_per_step": 4, "accumulate": 2}, {"rows_per_step": 3, "static_shapes": True}],
)
def test_rows_of_a_batch_have_the_bits_of_single_rows(
    data: Data, model: Any, reference: Reference, tmp_path: Path, options: dict[str, Any]
) -> None:
    several = reference_logps(model, loader(data, **options), tmp_path / "reference.arrow", forward_of(model))
    assert several.logps.tobytes() == reference.logps.tobytes()
    assert (several.bounds == reference.bounds).all()


def test_unpacked_sides_have_the_same_log_probabilities(
    data: Data, model: Any, reference: Reference, tmp_path: Path
) -> None:
    unpacked = loader(data, 3, unpacked=True)
    plain = make("Llama", vocab_size=3200, max_position_embeddings=512)
    plain.load_state_dict(model.state_dict())
    found = reference_logps(plain, unpacked, tmp_path / "reference.arrow", forward_of(plain))
    assert found.logps == pytest.approx(reference.logps, rel=1e-5)
    assert "one document a row" in found.key["attention"]


# Every order


def check_batch(batch: dict[str, Any], model: Any) -> None:
    """The reference of each document is what the model says of it now, in this very batch."""
    with torch.no_grad():
        now = forward_of(model)(batch)
    is_side = batch["sides"] >= 0
    assert torch.equal(batch["reference"][is_side], now[is_side])
    assert not batch["reference"][~is_side].any()
    assert batch["reference"].dtype == torch.float64


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("options", [{"order": "sequential"}, {"seed": 3, "epochs": 2}, {"static_shapes": True}])
def test_any_order_and_ranks_give_each_row_its_own(
    data: Data, model: Any, reference: Reference, world_size: int, options: dict[str, Any]
) -> None:
    rows = len(kit.Packed(data.folder).rows())
    assert rows % 12, "the last step is to be filled up"
    sides = 0
    for rank in range(world_size):
        batches = loader(data, 12, rank=rank, world_size=world_size, reference=reference, **options)
        for batch in batches:
            check_batch(batch, model)
            sides += int((batch["sides"] >= 0).sum())
    assert sides == len(reference.logps) * options.get("epochs", 1)


def shuffled(rows: Any) -> Iterator[Any]:
    """A dataset in every way in which a trainer may exchange its rows."""
    yield rows
    yield rows.shuffle(seed=4)
    yield rows.select(range(len(rows) - 1, 2, -2))
    yield rows.filter(lambda row: len(row["sides"]) == 2)
    yield from (rows.shuffle(seed=1).shard(3, index) for index in range(3))


def test_collate_finds_rows_in_shuffled_datasets(data: Data, model: Any, reference: Reference) -> None:
    collator = partial(collate, reference=reference)
    rows = datasets.load_from_disk(str(data.folder))
    for dataset in shuffled(rows["train"]):
        assert len(dataset) > 2
        for begin in range(0, len(dataset), 3):
            check_batch(collator([dataset[place] for place in range(begin, min(begin + 3, len(dataset)))]), model)
    with pytest.raises(ConfigError, match="no such row: it is of another dataset or split"):
        collator([rows["holdout"][0]])


def test_a_loader_of_other_rows_refuses_it(data: Data, reference: Reference) -> None:
    with pytest.raises(ConfigError, match="of other rows than those of"):
        loader(data, split="holdout", reference=reference)


# Stored once


def never(batch: dict[str, Any]) -> torch.Tensor:
    raise AssertionError("it is stored, and was computed again")


def test_it_is_computed_once(data: Data, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "reference.arrow"
    model = model_of().train()

    def watched(batch: dict[str, Any]) -> torch.Tensor:
        assert not model.training
        assert not torch.is_grad_enabled()
        return forward_of(model)(batch)

    done: list[tuple[int, int]] = []
    rows = len(loader(data))
    first = reference_logps(model, loader(data, 5), file, watched, progress=lambda *counts: done.append(counts))
    assert done == [(min(place, rows), rows) for place in range(5, rows + 5, 5)]
    assert model.training
    content = file.read_bytes()
    for options in ({}, {"seed": 8, "epochs": 3}, {"rows_per_step": 6}):
        again = reference_logps(model, loader(data, **options), file, never)
        assert again.logps.tobytes() == first.logps.tobytes()
        assert (again.digests == first.digests).all()
        assert again.key == first.key
    assert [path.name for path in file.parent.iterdir()] == ["reference.arrow"]
    assert file.read_bytes() == content
    table = pa.ipc.open_file(content)
    assert table.schema.metadata[b"rows"].decode() == loader(data).corpus.fingerprint
    assert table.read_all().column("logps").to_pylist()[3] == first.logps[first.bounds[3] : first.bounds[4]].tolist()


def test_trained_weights_are_refused(data: Data, tmp_path: Path) -> None:
    file = tmp_path / "reference.arrow"
    model = model_of()
    reference_logps(model, loader(data), file, forward_of(model))
    with torch.no_grad():
        model.lm_head.weight[7, 3] += 1e-7
    with pytest.raises(ConfigError, match="weights differs"):
        reference_logps(model, loader(data), file, never)


def test_a_resumed_training_never_computes_it(data: Data, model: Any, tmp_path: Path) -> None:
    key = reference_key(loader(data), model, use_packed(model), hash_weights(model))
    with pytest.raises(ConfigError, match="cannot be computed from weights that are trained already"):
        stored_reference(tmp_path / "reference.arrow", key, loader(data), None, CPU)
    first = stored_reference(tmp_path / "reference.arrow", key, loader(data), forward_of(model), CPU)
    again = stored_reference(tmp_path / "reference.arrow", key, loader(data), None, CPU)
    assert again.logps.tobytes() == first.logps.tobytes()


@pytest.fixture
def stored(data: Data, model: Any, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A file with the reference of the held-out rows, and what it is of."""
    held_out = loader(data, split="holdout")
    file = tmp_path / "reference.arrow"
    return file, dict(reference_logps(model, held_out, file, forward_of(model)).key)


@pytest.mark.parametrize("name", KEYS)
def test_what_it_is_of_must_be_the_same(stored: tuple[Path, dict[str, str]], data: Data, name: str) -> None:
    file, key = stored
    held_out = loader(data, split="holdout")
    with pytest.raises(ConfigError, match=rf"{name} differs: it is of '.*', and this training has 'other'; .*delete"):
        stored_reference(file, key | {name: "other"}, held_out, never, CPU)
    assert stored_reference(file, key, held_out, never, CPU).key == key


def test_another_precision_attention_or_split_is_another_reference(
    stored: tuple[Path, dict[str, str]], data: Data, model: Any
) -> None:
    file, _ = stored
    held_out = loader(data, split="holdout")
    with pytest.raises(ConfigError, match="rows differs"):
        reference_logps(model, loader(data), file, never)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ConfigError, match="dtype differs"):
        reference_logps(model, held_out, file, never)
    other = model_of()
    use_packed(other, "sdpa")
    with pytest.raises(ConfigError, match="attention differs"):
        reference_logps(other, held_out, file, never)
    with pytest.raises(ConfigError, match="weights differs"):
        reference_logps(model_of(1), held_out, file, never)
    with pytest.raises(ConfigError, match="weights differs"):  # the same numbers, rounded
        reference_logps(model_of().to(torch.bfloat16), held_out, file, never)


def test_only_some_rows(data: Data, model: Any, reference: Reference, tmp_path: Path) -> None:
    key = reference_key(loader(data), model, use_packed(model), hash_weights(model))
    file = tmp_path / "reference.arrow"
    first = stored_reference(file, key, loader(data, 2), forward_of(model), CPU, rows=5)
    assert first.logps.tobytes() == reference.logps[: reference.bounds[5]].tobytes()
    with pytest.raises(ConfigError, match="has 5 rows, and must have 6"):
        stored_reference(file, key, loader(data, 2), never, CPU, rows=6)


# Damage


def written(columns: dict[str, pa.Array], metadata: dict[bytes, bytes], **options: Any) -> bytes:
    """A file of one record batch, without nulls as its schema says."""
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    schema = pa.schema(fields, metadata=metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(pa.record_batch(list(columns.values()), schema=schema))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def damaged(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Name → what a file may hold in place of a reference."""
    yield "empty", b""
    yield "cut", content[:-40]
    yield "no Arrow", bytes(len(content))
    batch = pa.ipc.open_file(content).get_batch(0)
    metadata = batch.schema.metadata
    logps, digest = batch.columns
    columns = {"logps": logps, "digest": digest}
    values = logps.values.to_numpy().copy()
    values[2] = np.nan
    numbers = pa.ListArray.from_arrays(logps.offsets, pa.array(values), type=logps.type)
    yield "not a number", written({"logps": numbers, "digest": digest}, metadata)
    floats = pa.ListArray.from_arrays(logps.offsets, logps.values.cast(pa.float32()))
    yield "other type", written({"logps": floats, "digest": digest}, metadata)
    yield "other columns", written({"digest": digest, "logps": logps}, metadata)
    yield "fewer rows", written({name: column[:-1] for name, column in columns.items()}, metadata)
    yield "compressed", written(columns, metadata, compression="zstd")
    yield "other version", written(columns, metadata | {b"packtrain_reference": b"2"})
    offsets = logps.offsets.to_numpy().copy()
    offsets[1] = 1 << 30
    lying = pa.ListArray.from_buffers(logps.type, len(logps), [None, pa.py_buffer(offsets)], children=[logps.values])
    yield "offsets that lie", written({"logps": lying, "digest": digest}, metadata)
    # Sound, but larger than the rows can make it.
    yield "large", written(columns, metadata | {b"more": b"x" * (2 << 20)})


def test_damaged_files_are_refused(stored: tuple[Path, dict[str, str]], data: Data) -> None:
    file, key = stored
    seen = set()
    for name, content in damaged(file.read_bytes()):
        other = file.with_name(f"{name}.arrow")
        other.write_bytes(content)
        with pytest.raises(ConfigError, match=r"the reference .*\.arrow cannot be read: "):
            stored_reference(other, key, loader(data, split="holdout"), never, CPU)
        assert other.read_bytes() == content
        seen.add(name)
    assert len(seen) == 11
    os.mkfifo(file.with_name("pipe.arrow"))
    with pytest.raises(ConfigError, match="not a regular file"):
        stored_reference(file.with_name("pipe.arrow"), key, loader(data, split="holdout"), never, CPU)


def test_what_a_file_says_is_not_printed_raw(stored: tuple[Path, dict[str, str]], data: Data) -> None:
    file, key = stored
    batch = pa.ipc.open_file(file.read_bytes()).get_batch(0)
    metadata = batch.schema.metadata | {b"kernel": b"\x1b[31m" + b"loop\n" * 1000}
    file.write_bytes(written(dict(zip(("logps", "digest"), batch.columns, strict=True)), metadata))
    with pytest.raises(ConfigError, match="kernel differs") as caught:
        stored_reference(file, key, loader(data, split="holdout"), never, CPU)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_values_that_are_no_numbers_are_not_stored(data: Data, model: Any, tmp_path: Path) -> None:
    def spoilt(batch: dict[str, Any]) -> torch.Tensor:
        return forward_of(model)(batch).where(batch["sides"] != 1, torch.nan)

    with pytest.raises(PacktrainError, match=r"a document in row 0 is nan: .* nothing was stored"):
        reference_logps(model, loader(data), tmp_path / "reference.arrow", spoilt)
    with pytest.raises(ConfigError, match=r"shape \(3,\) for a batch of \d+ documents"):
        reference_logps(model, loader(data), tmp_path / "reference.arrow", lambda batch: torch.zeros(3))
    assert not list(tmp_path.iterdir())


def test_a_file_appears_with_all_of_its_content(
    data: Data, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full, there is no file, and no draft of one."""
    held_out = loader(data, split="holdout")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="cannot be written: No space left on device"):
        reference_logps(model, held_out, tmp_path / "reference.arrow", forward_of(model))
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be read: Not a directory"):
        reference_logps(model, held_out, tmp_path / "file" / "reference.arrow", never)


# Models and data that have none


def test_adapters_are_no_part_of_a_reference(model: Any) -> None:
    peft = pytest.importorskip("peft")
    base = model_of()
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    with pytest.raises(ConfigError, match="take its hash before they are added"):
        hash_weights(adapted)
    assert hash_weights(model_of()) == hash_weights(model)


def test_wrapped_models_have_the_weights_that_they_wrap(model: Any) -> None:
    assert hash_weights(torch.compile(model)) == hash_weights(model)
    other = model_of()
    other.model.layers[1] = torch.compile(other.model.layers[1])
    assert hash_weights(other) == hash_weights(model)


def test_the_same_bytes_may_be_other_weights() -> None:
    values = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    variants = {
        "first": {"a": values},
        "other type": {"a": values.view(torch.float16)},
        "other shape": {"a": values.reshape(3, 2)},
        "other name": {"b": values},
        "two": {"a": values[:1], "b": values[1:]},
    }
    hashes = set()
    for weights in variants.values():
        module = torch.nn.ParameterDict(weights)
        hashes.add(hash_weights(module))
        assert hash_weights(torch.nn.ParameterDict(weights)) in hashes
    assert len(hashes) == len(variants)


def test_data_without_pairs_have_none(folder: Path, model: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no preference pairs, and needs no reference"):
        reference_logps(model, loader(folder), tmp_path / "reference.arrow", never)


# Ranks

PROGRAM = """
import sys
sys.path.append({root!r})
import torch.distributed as dist
from packtrain.schemas.errors import PacktrainError
from packtrain.training import PackedLoader
from packtrain.training.preference.reference_pass import reference_logps
from tests.training.test_reference import forward_of, model_of

dist.init_process_group("gloo")
file, folder, seed = sys.argv[1:]
model = model_of(int(seed))
rows = PackedLoader(folder, rows_per_step=4)
try:
    reference = reference_logps(model, rows, file, forward_of(model))
    with open(f"{{file}}.{{dist.get_rank()}}", "wb") as out:
        out.write(reference.logps.tobytes() + reference.bounds.tobytes() + reference.digests.tobytes())
except PacktrainError as error:
    with open(f"{{file}}.{{dist.get_rank()}}", "w") as out:
        out.write(str(error))
dist.destroy_process_group()
"""
SHARDED = """
import sys
sys.path.append({root!r})
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from packtrain.training.preference.reference_pass import hash_weights
from tests.training.test_reference import model_of

dist.init_process_group("gloo")
model = model_of()
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
whole = sum(weight.numel() for weight in model.parameters())
own = sum(weight.to_local().numel() for weight in model.parameters())
assert own < 0.6 * whole, "the weights are not divided"
with open(f"{{sys.argv[1]}}.{{dist.get_rank()}}", "w") as out:
    out.write(hash_weights(model))
dist.destroy_process_group()
"""
ROOT = Path(__file__).parents[2]


def on_two_ranks(code: str, tmp_path: Path, file: Path, *arguments: object) -> list[bytes]:
    """What a program on two ranks writes into the file with the number of each rank behind its name."""
    program = tmp_path / "program.py"
    program.write_text(code.format(root=str(ROOT)))
    command = [*("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"), program]
    done = warm.run([*command, file, *arguments], modules=warm.TRAINING)
    assert done.returncode == 0, done.stderr
    return [Path(f"{file}.{rank}").read_bytes() for rank in (0, 1)]


@pytest.mark.slow
def test_a_sharded_model_has_the_weights_of_the_whole_one(model: Any, tmp_path: Path) -> None:
    expected = hash_weights(model).encode()
    assert on_two_ranks(SHARDED, tmp_path, tmp_path / "hash") == [expected, expected]


@pytest.mark.slow
def test_two_ranks_compute_and_read_the_same(data: Data, reference: Reference, tmp_path: Path) -> None:
    content = reference.logps.tobytes() + reference.bounds.tobytes() + reference.digests.tobytes()
    file = tmp_path / "reference.arrow"
    assert on_two_ranks(PROGRAM, tmp_path, file, data.folder, 0) == [content, content], "computed"
    before = file.stat().st_mtime_ns
    assert on_two_ranks(PROGRAM, tmp_path, file, data.folder, 0) == [content, content], "read"
    assert file.stat().st_mtime_ns == before
    first, second = on_two_ranks(PROGRAM, tmp_path, file, data.folder, 1)
    assert b"weights differs" in first
    assert second == first


def test_ranks_that_are_not_joined_are_refused(data: Data, model: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"divides rows among 2 ranks, and torch\.distributed joins 1"):
        reference_logps(model, loader(data, 2, rank=0, world_size=2), tmp_path / "reference.arrow", never)
