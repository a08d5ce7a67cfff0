"""A packed dataset of documents as long as APPS's, made from a seed: no tokenizer, no files, numpy and pyarrow only.

Lengths: in a run of packtrain over 153 real APPS training problems (2,266 examples, one a solution, Qwen3 tokens) the
prompts had a mean log length of 6.286 with a deviation of 0.435, the answers 5.047 and 0.632, their logarithms a
correlation of 0.28. Drawn from that: a mean of 780 tokens (real 781), a 99th percentile of 1,800 (1,803), a mean square
within 1 % of the real one, and a quarter of the tokens trained (25.0 %).

The shards are packtrain's own: planned by `stages.plan`, laid out by `stages.layout`, read by `PackedLoader`. Only the
manifest is written here, because the run's own needs packages that a machine for training may lack.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from packtrain.schemas.fingerprint import hash_bytes
from packtrain.schemas.ledger import Ledger
from packtrain.schemas.manifest import FileRecord, Manifest, ShardRecord, SplitRecord
from packtrain.schemas.rows import ROW_SIZES, ROW_SIZES_NAME
from packtrain.stages.pack.layout import PlannedPieces, lay_out
from packtrain.stages.pack.plan import plan_rows

PROMPT, ANSWER, CORRELATION = (6.286, 0.435), (5.047, 0.632), 0.28


def draw(count: int, seed: int, most: int, scale: float = 1.0) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(N,) lengths of documents, at most `most`; (N,) how many of their last tokens are trained.

    Args:
        scale: of all lengths, for toys.
    """
    random = np.random.default_rng(seed)
    first, second = random.standard_normal((2, count))
    second = CORRELATION * first + np.sqrt(1 - CORRELATION**2) * second
    prompts = np.exp(PROMPT[0] + PROMPT[1] * first) * scale
    answers = np.exp(ANSWER[0] + ANSWER[1] * second) * scale
    trained = np.clip(np.rint(answers), 1, most - 1).astype(np.int32)
    lengths = np.clip(np.rint(prompts).astype(np.int32) + trained, trained + 1, most).astype(np.int32)
    return lengths, np.minimum(trained, lengths - 1).astype(np.int32)


def write_dataset(
    folder: Path, *, documents: int, max_length: int, vocabulary: int, seed: int = 0, scale: float = 1.0
) -> Manifest:
    """Make `folder` a finished dataset with one split, `train`, in one shard of random tokens."""
    lengths, trained = draw(documents, seed, max_length, scale)
    plan = plan_rows(lengths, max_length, "bfd")
    order, offsets = _shuffled(plan.order, plan.row_offsets, seed)
    lengths, trained = lengths[order], trained[order]
    ids = np.random.default_rng(seed + 1).integers(5, vocabulary, int(lengths.sum()), dtype=np.int32)
    ends = np.cumsum(lengths, dtype=np.int64)
    runs = np.stack([lengths - trained, lengths], axis=1).ravel().astype(np.int32)
    laid = lay_out(
        PlannedPieces(
            tokens=np.split(ids, ends[:-1]),
            starts=np.zeros(len(lengths), np.int32),
            lengths=lengths,
            repeated=np.zeros(len(lengths), np.int32),
            doc_ids=order.astype(np.int64),
            row_offsets=offsets,
            run_ends=runs,
            run_supervised=np.tile([False, True], len(lengths)),
            run_offsets=np.arange(0, 2 * len(lengths) + 1, 2, dtype=np.int64),
        )
    )
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    name = "shards/00000-generated.arrow"
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, laid.batch.schema) as writer:
        writer.write_batch(laid.batch)
    tokens = np.add.reduceat(lengths, offsets[:-1])
    squares = np.add.reduceat(lengths.astype(np.int64) ** 2, offsets[:-1])
    weights = pa.record_batch([pa.array(tokens, pa.int32()), pa.array(squares, pa.int64())], schema=ROW_SIZES)
    with pa.OSFile(str(folder / ROW_SIZES_NAME), "wb") as sink, pa.ipc.new_file(sink, ROW_SIZES) as writer:
        writer.write_batch(weights)
    shard = ShardRecord(
        **_file(folder, name),
        rows=len(offsets) - 1,
        tokens=int(lengths.sum()),
        trained=int(laid.trained.sum()),
        max_docs=int(np.diff(offsets).max()),
    )
    configuration = {"truncate": {"max_length": max_length}, "pack": {"shuffle": True}}
    manifest = Manifest(
        plan_hash="generated",
        plan={"config": configuration, "inputs": [], "tokenizer": {"pad_id": 0}},
        schema={field.name: str(field.type) for field in laid.batch.schema},
        splits={"train": SplitRecord((shard,), (plan.certificate,))},
        files=(FileRecord(**_file(folder, ROW_SIZES_NAME)),),
        ledger=Ledger(),
    )
    (folder / "manifest.json").write_text(json.dumps({"hash": "generated", **manifest.payload()}))
    return manifest


def _shuffled(
    order: NDArray[np.int64], offsets: NDArray[np.int64], seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows in a random order, as a run of packtrain writes them."""
    rows = np.random.default_rng(seed + 2).permutation(len(offsets) - 1)
    pieces = [order[offsets[row] : offsets[row + 1]] for row in rows.tolist()]
    sizes = np.diff(offsets)[rows]
    return np.concatenate(pieces), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _file(folder: Path, name: str) -> dict[str, Any]:
    digest = hash_bytes((folder / name).read_bytes())
    return {"name": name, "bytes": (folder / name).stat().st_size, "hash": digest}
