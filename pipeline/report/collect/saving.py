"""What packing saves compared with padding, and which batch of packed rows replaces a batch of examples."""

from ....schemas.config.config import PackConfig
from ....schemas.report import BatchRecipe, BatchSize, Choice, Packing, PaddingCost, ReportShape, Saving
from ....schemas.units import plural, share, times
from ..options import ReportOptions
from .padding import expected_padding, padding_cost

EXAMPLES = tuple(1 << power for power in range(3, 11))
"""Sizes of unpacked batches: 8 to 1,024 examples."""
STRATEGIES = ("padded", "padding_free")
"""What a run is compared with. One of their rows is a batch of documents."""
_ALIKE = 0.05
"""Two epochs whose times differ by at most this share take about equally long."""


def savings_of(
    choice: Choice | None, strategy: str, rows: int, tokens: int, squares: int, device_flops: float, shape: ReportShape
) -> list[Saving]:
    """An epoch with padded batches, with padding-free ones, and as this run packed it, all at the same length.

    A step is `Choice.batch` documents, or as many packed rows: each way needs memory for that many times `max_length`.
    The first two are scaled up if `choice` read a sample, and if the run's strategy keeps tokens that they truncate.

    Args:
        choice: None if lengths are no longer known.
        rows, tokens, squares: this run's totals, with alignment padding.
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
            flops = shape.model.flops(point.slots, point.squares) * more
            slots, steps = round(point.slots * more), round(point.rows * more)
            out.append(Saving(other, slots, steps, flops, flops / device_flops))
    flops = shape.model.flops(tokens, squares)
    out.append(Saving(strategy, tokens, -(-rows // choice.batch), flops, flops / device_flops))
    return out


def packing_sentence(
    rows: int,
    bound: int,
    fill: float,
    max_length: int,
    savings: list[Saving],
    choice: Choice | None,
    padding: PaddingCost | None = None,
) -> str:
    """How full the rows are, and what padded batches would cost instead.

    Args:
        bound: the fewest rows of any plan; 0 if unknown.
        savings: the result of `savings_of`.
    """
    words = [f"{plural(rows, 'row')} of {max_length:,} tokens, {share(fill)} full"]
    if bound:
        words[0] += "; no plan needs fewer" if rows == bound else f"; no plan needs fewer than {bound:,}"
    words[0] += "."
    if len(savings) > 1 and choice is not None and savings[-1].slots:
        padded, mine = savings[0], savings[-1]
        tokens, steps = times(padded.slots / mine.slots), times(padded.steps / max(mine.steps, 1))
        words.append(
            f"With padded batches of {choice.batch:,} documents, which need as much memory as {choice.batch:,} packed "
            f"rows, an epoch would compute {tokens} as many tokens in {steps} as many steps."
        )
    if padding is not None:
        words.append(padding.sentence)
    return " ".join(words)


def expected_packing(choice: Choice, options: ReportOptions, pack: PackConfig) -> Packing | None:
    """What a run would pack, from the comparison of lengths; None if there are no documents.

    Numbers from a sample are scaled up to all documents.

    Args:
        pack: what the run is configured to do.
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
    alignment, without = pack.alignment, choice.rows_unpadded
    cost = padding_cost(
        pack.padded_for,
        alignment,
        rows,
        choice.max_length,
        round(expected_padding(point, alignment) * more),
        rows if alignment.document == 1 else None if without is None else round(without * more),
        "at most " if alignment.row > alignment.document else "about " if more != 1 else "",
    )
    return Packing(
        sentence=packing_sentence(rows, bound, point.fill, choice.max_length, savings, choice, cost),
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
        padding=cost,
    )


def beside_time(packing: Packing) -> str | None:
    """What packing gains if padding-free batches take about as long; None if they do not."""
    free = next((one for one in packing.savings if one.strategy == "padding_free"), None)
    mine = packing.savings[-1] if packing.savings else None
    if free is None or mine is None or mine is free or abs(mine.seconds - free.seconds) > _ALIKE * free.seconds:
        return None
    words = (
        "Padding-free batches take about as long as packed rows. But packed rows give steps of a fixed size, so memory "
        "is known before the first step, and ranks wait less for each other"
    )
    return (
        f"{words}. An epoch has {mine.steps:,} steps instead of {free.steps:,}."
        if mine.steps < free.steps
        else f"{words}."
    )


def batch_size(rows: int, tokens: int, labels: int, examples: int) -> BatchSize | None:
    """What a batch of packed rows holds; None if nothing is packed.

    Args:
        examples: the examples in all rows, with copies.
    """
    if not rows or not tokens or not examples:
        return None
    of_row, of_example = tokens / rows, tokens / examples
    recipes = []
    for number in EXAMPLES:
        packed = max(1, round(number * of_example / of_row))
        recipes.append(
            BatchRecipe(
                examples=number,
                tokens=number * of_example,
                labels=number * labels / examples,
                rows=packed,
                examples_then=packed * examples / rows,
                steps=-(-rows // packed),
            )
        )
    # The largest usual batch that still leaves at least four steps per epoch.
    shown = max((one for one in recipes if one.examples <= 64 and one.rows * 4 <= rows), default=recipes[0], key=_size)
    return BatchSize(
        sentence=(
            f"A packed row holds {plural(examples / rows, 'example')} and {of_row:,.0f} tokens on average. To keep the "
            f"token budget of {shown.examples} unpacked examples (about {shown.tokens:,.0f} tokens), take "
            f"{plural(shown.rows, 'row')} per step{_exactly(shown, of_row)}."
        ),
        tokens_a_row=of_row,
        labels_a_row=labels / rows,
        examples_a_row=examples / rows,
        tokens_an_example=of_example,
        recipes=recipes,
    )


def rows_exactly(recipe: BatchRecipe, tokens_a_row: float) -> str:
    """The packed rows with as many tokens, not rounded to whole rows."""
    return f"{recipe.tokens / tokens_a_row:,.2f}" if tokens_a_row else "–"


def _exactly(recipe: BatchRecipe, tokens_a_row: float) -> str:
    """The unrounded number in parentheses; empty if it is whole."""
    exact = rows_exactly(recipe, tokens_a_row)
    return "" if exact == f"{recipe.rows:,}.00" else f" ({exact} exactly)"


def _size(recipe: BatchRecipe) -> int:
    return recipe.examples
