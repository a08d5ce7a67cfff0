"""What `--json` prints of a run, a dry run and a packed row: plain data with stable keys, numbers as numbers."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..schemas.manifest import Manifest

if TYPE_CHECKING:
    from .inspect import Decoder
    from .prospect import Prospect
    from .reader import Finished


def run_json(manifest: Manifest, out: str, state: str, seconds: float, page: str | None = None) -> dict[str, Any]:
    """A finished run.

    Args:
        state: `finished` now, or `unchanged` since it was finished before.
        page: of its report, if one was written now.
    """
    splits = {}
    for name, split in manifest.splits.items():
        splits[name] = {
            "rows": split.rows,
            "bound": sum(window.bound for window in split.windows),
            "tokens": split.tokens,
            "trained": split.trained,
            "pieces": sum(window.pieces for window in split.windows),
            "shards": len(split.shards),
            "fill": split.tokens / max(split.rows * manifest.max_length, 1),
        }
    engine = manifest.plan["encode"]
    return {
        "state": state,
        "out": out,
        "manifest": manifest.hash,
        "seconds": seconds,
        "preference": manifest.preference,
        "max_length": manifest.max_length,
        "engine": {"name": engine["engine"], "version": engine["engine_version"]},
        "splits": splits,
        "ledger": manifest.ledger.to_json(),
        "total": asdict(manifest.ledger.total()),
        "report": page,
    }


def prospect_json(prospect: "Prospect", out: str, cache: str, workers: int) -> dict[str, Any]:
    """What a run would do."""
    files = [
        {
            "source": file.source,
            "path": str(file.origin or file.path),
            "rows": file.lines,
            "bytes": file.size,
            "hash": file.hash,
        }
        for file in prospect.files
    ]
    return {
        "out": out,
        "cache": cache,
        "workers": workers,
        "files": files,
        "formats": prospect.formats,
        "preference": prospect.pairs,
        "blocks": prospect.blocks,
        "blocks_cached": prospect.cached,
        "bytes_to_encode": prospect.missing_bytes,
        "engine": {"name": prospect.engine.name, "version": prospect.engine.version},
        "tokens_estimated": prospect.estimated_tokens,
        "room_needed": prospect.room_needed,
        "room_free": prospect.room_free,
    }


def row_json(dataset: "Finished", row: int, split: str, decoder: "Decoder | None") -> dict[str, Any]:
    """A packed row, or a preference pair; texts are None without a tokenizer.

    Raises:
        InputError: there is no such row or split.
    """
    from .inspect import names_of, pieces

    if dataset.manifest.preference:
        found = dataset.row(row, split).to_pylist()[0]
        doc_id = found["doc_ids"][0]
        ids = {name: found[f"{name}_ids"] for name in ("prompt", "chosen", "rejected")}
        texts = {name: decoder.text(one) if decoder is not None else None for name, one in ids.items()}
        return {
            "split": split,
            "row": row,
            "id": names_of(dataset.store, [doc_id])[doc_id],
            "doc_id": doc_id,
            **{name: {"text": texts[name], "ids": one} for name, one in ids.items()},
        }
    documents = pieces(dataset, row, split)
    names = names_of(dataset.store, [piece.doc_id for piece in documents])
    shown = []
    for piece in documents:
        runs = list(piece.spans())
        texts_of = decoder.spans([run for _, run in runs]) if decoder is not None else [None] * len(runs)
        shown.append(
            {
                "id": names.get(piece.doc_id),
                "doc_id": piece.doc_id,
                "start": piece.start,
                "tokens": len(piece.ids),
                "trained": sum(len(run) for trained, run in runs if trained),
                "spans": [
                    {"trained": trained, "text": text, "ids": run}
                    for (trained, run), text in zip(runs, texts_of, strict=True)
                ],
            }
        )
    tokens = sum(len(piece.ids) for piece in documents)
    return {
        "split": split,
        "row": row,
        "max_length": dataset.manifest.max_length,
        "tokens": tokens,
        "fill": tokens / dataset.manifest.max_length,
        "documents": shown,
    }
