"""The loss weights that rows give: of a message, and of an example."""

from typing import Any

from ...schemas.errors import RowRejectedError

LEAST, MOST = 1e-6, 1e6
"""Limits of a weight that is not 0. So products of three weights stay within float32."""


def check_weight(value: Any, where: str) -> float:
    """The weight as a number; 1 for null.

    Raises:
        RowRejectedError: `weight`, for anything but 0 and numbers within the limits.
    """
    if value is None:
        return 1.0
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and (value == 0 or LEAST <= value <= MOST):  # false for NaN
        return float(value)
    shown = repr(value) if number or isinstance(value, str | bool) else ""
    shown = shown if 0 < len(shown) < 40 else f"a {type(value).__name__}"
    raise RowRejectedError(
        "weight", f"`{where}` is {shown}: a weight is 0 (not trained), or a number from {LEAST:g} to {MOST:,.0f}"
    )
