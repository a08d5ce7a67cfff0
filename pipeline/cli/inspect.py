"""`packtrain inspect`: a packed row, or one example through all stages."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError
from .options import Folder, Json, Split
from .streams import print_json

if TYPE_CHECKING:
    from ..dataset.decode import Decoder
    from ..dataset.open import Finished


def inspect(
    folder: Folder,
    row: Annotated[int | None, typer.Option(help="Which packed row, from 0.", show_default="0")] = None,
    split: Split = None,
    example: Annotated[
        str | None, typer.Option("--id", help="Follow one example through all stages, by its id.")
    ] = None,
    doc: Annotated[int | None, typer.Option(help="Follow one example, by its doc id.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="The tokenizer's folder.", show_default="the run's")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="With --row: show token by token, with ids.")] = False,
    full: Annotated[bool, typer.Option("--full", help="With --id or --doc: shorten nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Show a packed row, or one example through all stages: source, text, tokens, and its place in a row."""
    from ..dataset.decode import load_decoder, show_row
    from ..dataset.open import open_dataset
    from ..dataset.run_notes import tokenizer_folder
    from ..report.printing import say
    from .console import make_console

    if example is not None or doc is not None:
        if (example is not None and doc is not None) or row is not None or split is not None or ids:
            raise ConfigError("give one of --row (with --split and --ids), --id and --doc")
        from ..explain.explain import Follower
        from ..explain.story import story_json
        from .story import tell

        follower = Follower(open_dataset(folder), tokenizer)
        story = follower.by_id(example) if example is not None else follower.by_number(doc or 0)
        if as_json:
            print_json(story_json(story))
        else:
            tell(make_console(), story, full=full)
        return
    if full:
        raise ConfigError("--full works with one example; add --id or --doc")
    dataset = open_dataset(folder)
    place = tokenizer or tokenizer_folder(dataset.store)
    decoder = load_decoder(place) if place is not None else None
    if as_json:
        print_json(_row_json(dataset, row or 0, split or "train", decoder))
        return
    console = make_console()
    if decoder is None:
        say(
            console, "the run's tokenizer was not found; give its folder with --tokenizer. Showing ids instead of text:"
        )
    show_row(console, dataset, row or 0, split or "train", decoder, ids)


def _row_json(dataset: "Finished", row: int, split: str, decoder: "Decoder | None") -> dict[str, Any]:
    """A packed row, or a preference pair. Without a tokenizer, texts are None.

    Raises:
        InputError: the row or the split does not exist.
    """
    from ...schemas.layout import fill_of
    from ...schemas.rows import UNPADDED
    from ..dataset.decode import names_of, pieces

    if dataset.manifest.preference:
        found = dataset.row(row, split).to_pylist()[0]
        doc_id = found["doc_ids"][0]
        ids = {name: found[f"{name}_ids"] for name in ("prompt", "chosen", "rejected")}
        texts = {name: decoder.text(one) if decoder is not None else None for name, one in ids.items()}
        return {
            "split": split,
            "row": row,
            "id": names_of(dataset, [doc_id])[doc_id],
            "doc_id": doc_id,
            **{name: {"text": texts[name], "ids": one} for name, one in ids.items()},
        }
    documents = pieces(dataset, row, split)
    names = names_of(dataset, [piece.doc_id for piece in documents])
    padded = UNPADDED in dataset.manifest.schema
    shown = []
    for piece in documents:
        runs = [(weight, run) for weight, _, run in piece.stretches()]
        texts_of = decoder.spans([run for _, run in runs]) if decoder is not None else [None] * len(runs)
        shown.append(
            {
                "id": names.get(piece.doc_id),
                "doc_id": piece.doc_id,
                "start": piece.start,
                "tokens": len(piece.ids),
                **({"padding": piece.padding} if padded else {}),
                "trained": piece.trained,
                **({"weight": sum(piece.weights)} if piece.weights is not None else {}),
                "spans": [
                    {
                        "trained": weight > 0,
                        **({"weight": weight} if piece.weights is not None else {}),
                        "text": text,
                        "ids": run,
                    }
                    for (weight, run), text in zip(runs, texts_of, strict=True)
                ],
            }
        )
    tokens = sum(len(piece.ids) for piece in documents)
    return {
        "split": split,
        "row": row,
        "max_length": dataset.manifest.max_length,
        "tokens": tokens,
        "fill": fill_of(tokens, 1, dataset.manifest.max_length),
        "documents": shown,
    }
