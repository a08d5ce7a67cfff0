"""How the rows of one source are read."""

from dataclasses import dataclass
from typing import Any

import msgspec

from ...stages.prep import Format, Options, make_format


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """How the rows of one source are read."""

    name: str
    """Name of the format in `stages.prep.FORMATS`."""
    options: Options
    said: str | None = None
    """What was detected and why, if the configuration left it open."""

    def make(self) -> Format:
        """The format itself."""
        return make_format(self.name, self.options)

    def payload(self) -> dict[str, Any]:
        """The format in the plan."""
        options: dict[str, Any] = msgspec.to_builtins(self.options.payload())
        return {"format": self.name, "options": options}
