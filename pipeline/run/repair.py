"""Repair a finished dataset: run its configuration again, which makes its damaged files.

The other files are left alone. The run writes the manifest that is there, or says that what it made does not match it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...schemas.dataset.manifest import Manifest, read_manifest
from ...schemas.dataset.names import MANIFEST, PLAN
from ...schemas.errors import InputError
from ...schemas.notebook import Shown, Table
from ...schemas.units import plural
from ..configfile import load_config
from ..dataset.open_dataset import open_output
from ..dataset.output_folder import check_plan, plan_bytes
from ..dataset.verify import Finding, verify
from ..observer import Observer
from ..store.local import LocalStore
from ..store.open_store import cache_root
from .run import make_dataset
from .workers import open_workspace


@dataclass(frozen=True, slots=True, repr=False)
class Repair(Shown):
    """What was wrong with a dataset, and what repair did about it."""

    findings: tuple[Finding, ...]
    """What was wrong before the repair."""
    remaining: tuple[Finding, ...]
    """What is still wrong and cannot be fixed by rebuilding files."""
    manifest: Manifest

    @property
    def sound(self) -> bool:
        """Whether the dataset has no findings now."""
        return not self.remaining

    def summary(self) -> str:
        if not self.findings:
            return "sound, nothing to repair"
        return f"{plural(len(self.findings), 'finding')}, {len(self.remaining):,} of which remain"

    def tables(self) -> Iterator[Table]:
        if self.findings:
            rows = (
                (finding.where, finding.problem, "still wrong" if finding in self.remaining else "repaired")
                for finding in self.findings
            )
            yield Table("", ("where", "what", "now"), rows)


def repair(
    folder: str | Path,
    config: "Mapping[str, Any] | str | Path",
    *,
    base: Path | None = None,
    observer: Observer | None = None,
) -> Repair:
    """Rebuild the damaged or missing files of a finished dataset. Its inputs must still be there.

    >>> packtrain.repair("packed", "mix.yaml").sound
    True

    Args:
        folder: a finished dataset, or its URL.
        config: the run's configuration, which says where its inputs are now. Nothing in the folder decides what is read
            or run.
        base: where relative paths of `config` start.

    Raises:
        InputError: there is no finished dataset.
        ConfigError: inputs are gone.
        OutputError: the inputs have changed, or `config` belongs to another run.
        IntegrityError: the rebuilt files do not match the manifest; or the manifest cannot be read; or a name in the
            folder points outside it.
    """
    observer = observer or Observer()
    out = open_output(folder)
    if isinstance(out, LocalStore) and out.root.is_file():
        raise InputError(f"{folder} is a file; give the folder that `packtrain run` wrote")
    manifest = read_manifest(out)
    if manifest is None:
        raise InputError(
            f"{out.url} has no {MANIFEST}, so there is no finished dataset to repair. If a run was interrupted, or "
            "the file deleted, run the same configuration again: it continues where it stopped"
        )
    loaded, folder_of_paths = load_config(config, base)
    # The dataset may have been moved, so the place where it is now replaces `out` of the configuration.
    loaded = loaded.model_copy(update={"out": out.url, "cache": cache_root(loaded.cache, out.url, folder_of_paths)})
    # The manifest has the configuration of the run that made the dataset. Another one would make other files.
    check_plan(out, {"config": loaded.identity()})
    findings = verify(folder, deep=True, observer=observer).findings
    # `_run/plan.json` may be damaged, or missing, as in a copy without `_run`. `verify` does not look at it, because it
    # does not belong to the dataset: it is written in any case. The manifest has the same plan.
    out.replace_bytes(PLAN, plan_bytes(manifest.plan))
    dataset_files = {MANIFEST, *(file.name for file in manifest.all_files)}
    damaged = {finding.name for finding in findings} & dataset_files
    if damaged:
        if MANIFEST in damaged:  # it could be read above, but has other bytes than a run writes, as if reformatted
            out.replace_bytes(MANIFEST, manifest.to_bytes())
        make_dataset(loaded, open_workspace(loaded, folder_of_paths, observer), damaged=damaged)
    # Everything is checked again: files that are none of the dataset's are not repaired, and are found again.
    remaining: tuple[Finding, ...] = ()
    if findings:
        remaining = verify(folder, deep=True, observer=observer).findings
    return Repair(findings, remaining, manifest)
