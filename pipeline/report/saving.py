"""What packing saves against padding, and what batch of rows holds what a batch of examples held."""

from ...schemas.report import BatchSize, Choice, Packing, Recipe, Saving, Shape
from .options import ReportOptions
from .spoken import many, share, times

EXAMPLES = tuple(1 << power for power in range(3, 11))
"""8 to 1,024."""
STRATEGIES = ("padded", "padding_free")
"""What a run is held against. A row of theirs is a batch of documents."""
_ALIKE = 0.05
"""Share of an epoch's time that two ways may differ by, and take about as long."""


def flops_of(slots: float, squares: float, shape: Shape) -> float:
    """Floating-point operations, forward and backward; see `stages.sweep.Outcome.flops`."""
    return 6.0 * shape.parameters * slots + 6.0 * squares * shape.hidden * shape.layers


def savings_of(
    choice: Choice | None, strategy: str, rows: int, tokens: int, squares: int, device_flops: float, shape: Shape
) -> list[Saving]:
    """The epoch padded, padding-free and as this run has it, at the same length.

    A step is `Choice.batch` documents, padded or not, or as many packed rows: each needs memory for as many times
    `max_length`. Of a sample, the other ways are taken as many times as there are more documents.
    Where the strategy cuts what they would truncate, as many times as it keeps more tokens.

    Args:
        choice: None where lengths are not known any more.
        rows, tokens, squares: of this run; alignment padding is computed, too.
    """
    if choice is None or not choice.documents:
        return []
    more = choice.documents_in_all / choice.documents
    at = {one.strategy: one for one in choice.points if one.max_length == choice.max_length}
    if strategy in ("bfd_split", "wrapped") and strategy in at and at["padding_free"].tokens:
        more *= at[strategy].tokens / at["padding_free"].tokens
    out = []
    for other in STRATEGIES:
        if other in at:
            point = at[other]
            flops = flops_of(point.slots, point.squares, shape) * more
            slots, steps = round(point.slots * more), round(point.rows * more)
            out.append(Saving(other, slots, steps, flops, flops / device_flops))
    flops = flops_of(tokens, squares, shape)
    out.append(Saving(strategy, tokens, -(-rows // choice.batch), flops, flops / device_flops))
    return out


def packing_sentence(
    rows: int, bound: int, fill: float, max_length: int, savings: list[Saving], choice: Choice | None
) -> str:
    """How full the rows are, and what padding would cost instead.

    Args:
        bound: no plan has fewer rows; 0 where it is not known.
        savings: as `savings_of` gives them.
    """
    words = [f"{many(rows, 'row')} of {max_length:,} tokens, {share(fill)} full"]
    if bound:
        words[0] += "; no plan needs fewer" if rows == bound else f"; no plan needs fewer than {bound:,}"
    words[0] += "."
    if len(savings) > 1 and choice is not None and savings[-1].slots:
        padded, mine = savings[0], savings[-1]
        tokens, steps = times(padded.slots / mine.slots), times(padded.steps / max(mine.steps, 1))
        words.append(
            f"Padded in batches of {choice.batch:,} documents, an epoch would compute {tokens} as many tokens, in "
            f"{steps} as many steps: a padded batch of {choice.batch:,} needs as much memory as {choice.batch:,} "
            "packed rows."
        )
    return " ".join(words)


def expected_packing(choice: Choice, options: ReportOptions) -> Packing | None:
    """What a run would pack, from the comparison of lengths; None where there is no document.

    Of a sample, everything is taken as many times as there are more documents.
    """
    strategy = "bfd" if choice.strategy == "none" else choice.strategy
    points = [one for one in choice.points if (one.strategy, one.max_length) == (strategy, choice.max_length)]
    if not points or not choice.documents or choice.strategy == "none":
        return None
    point, more = points[0], choice.documents_in_all / choice.documents
    rows, tokens = round(point.rows * more), round((point.tokens + point.padding) * more)
    squares = round(point.squares * more)
    savings = savings_of(choice, strategy, rows, tokens, squares, options.device_flops, options.shape)
    bound = point.bound if more == 1 else 0
    return Packing(
        sentence=packing_sentence(rows, bound, point.fill, choice.max_length, savings, choice),
        max_length=choice.max_length,
        strategy=strategy,
        splits=[],
        world_size=options.world_size,
        balance=[],
        order_before=None,
        order_after=None,
        savings=savings,
        shape=options.shape,
        device_flops=options.device_flops,
    )


def beside_time(packing: Packing) -> str | None:
    """What packing buys where padding-free batches take about as long; None where they take another time."""
    free = next((one for one in packing.savings if one.strategy == "padding_free"), None)
    mine = packing.savings[-1] if packing.savings else None
    if free is None or mine is None or mine is free or abs(mine.seconds - free.seconds) > _ALIKE * free.seconds:
        return None
    words = (
        "Padding-free batches take about as long as packed rows. What rows give beside time: steps of one fixed size, "
        "so that memory is known before the first, and ranks that wait less for one another"
    )
    return (
        f"{words}; {mine.steps:,} steps an epoch rather than {free.steps:,}."
        if mine.steps < free.steps
        else f"{words}."
    )


def batch_size(rows: int, tokens: int, labels: int, examples: int) -> BatchSize | None:
    """What a batch of packed rows holds; None where nothing is packed.

    Args:
        examples: of the rows, every copy counted.
    """
    if not rows or not tokens or not examples:
        return None
    of_row, of_example = tokens / rows, tokens / examples
    recipes = []
    for number in EXAMPLES:
        packed = max(1, round(number * of_example / of_row))
        recipes.append(
            Recipe(
                examples=number,
                tokens=number * of_example,
                labels=number * labels / examples,
                rows=packed,
                examples_then=packed * examples / rows,
                steps=-(-rows // packed),
            )
        )
    # A batch that people take, if there are a few such steps.
    shown = max((one for one in recipes if one.examples <= 64 and one.rows * 4 <= rows), default=recipes[0], key=_size)
    return BatchSize(
        sentence=(
            f"A packed row holds {many(examples / rows, 'example')} and {of_row:,.0f} tokens on average; "
            f"{many(shown.rows, 'row')} a step{_exactly(shown, of_row)} {'keeps' if shown.rows == 1 else 'keep'} the "
            f"token budget of "
            f"{shown.examples} unpacked examples, about {shown.tokens:,.0f} tokens."
        ),
        tokens_a_row=of_row,
        labels_a_row=labels / rows,
        examples_a_row=examples / rows,
        tokens_an_example=of_example,
        recipes=recipes,
    )


def rows_exactly(recipe: Recipe, tokens_a_row: float) -> str:
    """Packed rows with as many tokens, before they are rounded."""
    return f"{recipe.tokens / tokens_a_row:,.2f}" if tokens_a_row else "–"


def _exactly(recipe: Recipe, tokens_a_row: float) -> str:
    """Beside the whole number, where it is another."""
    exact = rows_exactly(recipe, tokens_a_row)
    return "" if exact == f"{recipe.rows:,}.00" else f" ({exact} exactly)"


def _size(recipe: Recipe) -> int:
    return recipe.examples
