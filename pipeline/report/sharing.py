"""What it saves that documents of one source row store the tokens that they begin with once, in words."""

from ...schemas.report import Sharing

WORTH_SAYING = 1.1
"""Fewer tokens by a smaller factor are not mentioned."""


def describe_sharing(sharing: Sharing | None) -> str:
    """What sharing saves or would save, and the length of rows that it needs; "" if that is not worth a sentence."""
    if sharing is None or not sharing.tokens:
        return ""
    factor = sharing.tokens / max(1, sharing.stored)
    longer_factor = sharing.tokens / max(1, sharing.stored_in_longer_rows)
    if max(factor, longer_factor) < WORTH_SAYING:
        return ""
    stores = "stores" if sharing.is_used else "would store"
    words = f"pack.share=row {stores} {factor:.1f} times fewer tokens: documents of one source row begin alike."
    if longer_factor > factor * WORTH_SAYING:
        words += (
            f" Rows of {sharing.row_length:,} cut many groups of such documents; with "
            f"pack.row_length={sharing.longer_row_length} it would be {longer_factor:.1f} times."
        )
    return words
