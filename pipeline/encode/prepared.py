"""Describes what a run encodes, and how: the input of all later steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...schemas.config.config import SourceConfig
from ...schemas.fingerprint import fingerprint, version
from ..contamination import Evaluation
from ..inputs.blocks import InputFile
from ..inputs.source_formats import SourceFormat
from ..store.open_store import Store
from .encode_spec import OF_TEMPLATES, PAIRS_FORMAT, EncodeSpec, Look
from .task import EncodeTask


@dataclass(frozen=True, slots=True)
class Prepared:
    """Scanned inputs with known formats, and how their rows become tokens."""

    sources: tuple[SourceConfig, ...]
    files: tuple[InputFile, ...]
    """Input files, hashed and cut into blocks, in the order of the sources."""
    joined: tuple[InputFile, ...]
    """The same as they are encoded: small files may be joined, see `join_small`."""
    formats: Mapping[str, SourceFormat]
    """The format of each source."""
    pairs: bool
    """Whether all sources are preference data."""
    spec: EncodeSpec
    """The encoding specification, with the chosen engine."""
    look: Look
    """What the first look at the rows found."""
    evaluation: Evaluation | None = None
    """The evaluation data to compare with."""

    def tasks(self, cache: Store, files: Sequence[InputFile] | None = None) -> list[EncodeTask]:
        """One task for each block, in the order of sources, files and blocks.

        Args:
            cache: the store for parts; before the tasks run, the specification must be saved there.
            files: those whose blocks are meant; None for `joined`.
        """
        sources = {source.name: (source, *self._settings(source)) for source in self.sources}
        out = []
        for file in self.joined if files is None else files:
            source, settings, conversational = sources[file.source]
            form = self.formats[file.source]
            out += [
                EncodeTask(
                    file.path,
                    block,
                    form.name,
                    form.options,
                    source.max_row_bytes,
                    cache,
                    self.spec.name,
                    settings,
                    conversational,
                    source.where,
                    self.pairs,
                )
                for block in file.blocks
            ]
        return out

    def _settings(self, source: SourceConfig) -> tuple[str, bool]:
        """Hash of everything but the block that a part of a source depends on; and whether its rows can be
        conversations, which alone depend on the template.
        """
        form = self.formats[source.name]
        conversational = not form.make().is_plain
        settings = {
            **form.payload(),
            "max_row_bytes": source.max_row_bytes,
            "encode": {k: v for k, v in self.spec.payload().items() if conversational or k not in OF_TEMPLATES},
            "where": [source.where, version("polars")] if source.where is not None else None,
            "pairs": PAIRS_FORMAT if self.pairs else None,
        }
        return fingerprint(settings), conversational
