"""How much each trained token counts in the loss."""

from typing import Literal

from pydantic import Field

from .section import ConfigModel

LossWeight = Field(default=None, ge=1e-6, le=1e6, allow_inf_nan=False)
"""The weight of a source."""


class LossConfig(ConfigModel):
    """How much each trained token counts in the loss.

    Its weight is that of its message times that of its example times its source's `loss_weight`, divided as `normalize`
    says. Datasets in which all weights are 1 have no `loss_weights`.
    """

    normalize: Literal["token", "document"] = "token"
    """`token`: every token counts by its weight. `document`: the weight is divided by the number of trained tokens of
    its document (example) in the row, so that every document counts the same, whatever its length. A document that lies
    in several rows counts once in each."""
    column: Literal["auto", "always"] = "auto"
    """`auto`: rows have `loss_weights` if some weight is not 1. `always`: also if all are 1; a stream needs it for
    weights of messages, because it cannot look ahead."""

    @property
    def divides(self) -> bool:
        """Whether weights depend on how many tokens are trained."""
        return self.normalize != "token"
