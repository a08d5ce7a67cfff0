"""`packtrain inspect`: a packed row, or one example through all stages."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError
from .options import Folder, Json
from .output import print_json

if TYPE_CHECKING:
    from ..dataset.decode import Decoder
    from ..dataset.open_dataset import Finished


def inspect(
    folder: Folder,
    row: int | None = None,
    split: str | None = None,
    example: Annotated[str | None, typer.Option("--id")] = None,
    tokenizer: Path | None = None,
    ids: bool = False,
    full: bool = False,
    as_json: Json = False,
) -> None:
    """Show a packed row, or one example through all stages: source, text, tokens, and its place in a row.

    Args:
        row: which packed row, from 0.
        split: which split; by default train.
        example (ID): follow one example through all stages, by its id or its doc id.
        tokenizer: the tokenizer's folder; by default the run's.
        ids: with --row: show token by token, with ids.
        full: with --id: shorten nothing.
    """
    from ..dataset.decode import load_decoder, show_row
    from ..dataset.open_dataset import open_dataset
    from ..dataset.run_notes import tokenizer_folder
    from .console import make_console, put

    if example is not None:
        if row is not None or split is not None or ids:
            raise ConfigError("give one of --row (with --split and --ids) and --id")
        from ..explain.explain import Follower
        from ..explain.story import story_json
        from .story import tell

        follower = Follower(open_dataset(folder), tokenizer)
        story = follower.by_number(int(example)) if example.isdecimal() else follower.by_id(example)
        if as_json:
            print_json(story_json(story))
        else:
            tell(make_console(), story, full=full)
        return
    if full:
        raise ConfigError("--full works with one example; add --id")
    dataset = open_dataset(folder)
    place = tokenizer or tokenizer_folder(dataset.store)
    decoder = load_decoder(place) if place is not None else None
    if as_json:
        print_json(_row_json(dataset, row or 0, split or "train", decoder))
        return
    console = make_console()
    if decoder is None:
        put(
            console, "the run's tokenizer was not found; give its folder with --tokenizer. Showing ids instead of text:"
        )
    show_row(console, dataset, row or 0, split or "train", decoder, ids)


def _row_json(dataset: "Finished", row: int, split: str, decoder: "Decoder | None") -> dict[str, Any]:
    """A packed row, or a preference pair. Without a tokenizer, texts are None.

    Raises:
        InputError: the row or the split does not exist.
    """
    from ...schemas.layout import fill_of
    from ..dataset.decode import names_of, pieces

    if dataset.manifest.preference:
        found = dataset.row(row, split).to_pylist()[0]
        doc_id = found["doc_ids"][0]
        parts = {name: found[f"{name}_ids"] for name in ("prompt", "chosen", "rejected")}
        texts = {name: decoder.text(ids) if decoder is not None else None for name, ids in parts.items()}
        shown = {name: {"text": texts[name], "ids": ids} for name, ids in parts.items()}
        return {"split": split, "row": row, "id": names_of(dataset, [doc_id])[doc_id], "doc_id": doc_id, **shown}
    documents, length = pieces(dataset, row, split), dataset.manifest.max_length
    names = names_of(dataset, [piece.doc_id for piece in documents])
    tokens = sum(len(piece.ids) for piece in documents)
    out: dict[str, Any] = {"split": split, "row": row, "max_length": length, "tokens": tokens}
    out |= {"fill": fill_of(tokens, 1, length), "documents": []}
    for piece in documents:
        runs = [(weight, run) for weight, _, run in piece.stretches()]
        each = decoder.spans([run for _, run in runs]) if decoder is not None else [None] * len(runs)
        out["documents"].append({
            "id": names.get(piece.doc_id),
            "doc_id": piece.doc_id,
            "start": piece.start,
            "tokens": len(piece.ids),
            "padding": piece.padding,
            "trained": piece.trained,
            "weight": sum(weight * len(run) for weight, run in runs),
            "spans": [
                {"trained": weight > 0, "weight": weight, "text": text, "ids": run}
                for (weight, run), text in zip(runs, each, strict=True)
            ],
        })  # fmt: skip
    return out
