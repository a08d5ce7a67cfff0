"""The shape of a model, for cost estimates."""

from dataclasses import dataclass

from ..flops import ModelShape
from ..positions import Limit


@dataclass(frozen=True, slots=True)
class ReportShape:
    """The shape of the model whose work is estimated."""

    name: str
    """Display name, such as `7 billion parameters` or a folder's name."""
    parameters: float
    """Parameters used per token; for a mixture of experts, the active ones."""
    layers: int
    hidden: int
    limit: Limit | None = None
    """The longest document that the model is made for; None if that is unknown."""

    @property
    def model(self) -> ModelShape:
        """The numbers alone."""
        return ModelShape(self.parameters, self.layers, self.hidden)
