"""The reference of a preference training: the log-probability of each document under a model that is not trained.

It is computed once, for the rows in their stored order, and kept in an Arrow file, of which row n belongs to row n of
the split, and has the digest of its tokens. So neither the order of a loader, nor its ranks, nor a dataset that was
shuffled, filtered or divided can exchange the references of two rows. Metadata of the file say by what it was computed,
and a file in which one of them differs is refused:

    rows         fingerprint of the split's rows and their order
    weights      hash of the reference model's weights
    dtype        of the weights, and of autocast
    attention    its name in transformers
    kernel       what computed the attention
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import digests, lists, view
from ...schemas.dataset.row_batch import Row
from ...schemas.errors import ConfigError, IntegrityError, StoreError
from ...schemas.escape import escape_line
from ...schemas.files.arrow_sizes import require_bounded
from ...schemas.files.foreign import read_regular
from ...schemas.fingerprint import short_hash
from ...schemas.rows import lists_of, schema_without_nulls
from ...schemas.units import plural
from ..packed_rows import PackedRows

KEYS = ("rows", "weights", "dtype", "attention", "kernel")
"""Keys of a file's metadata, which the module's text explains."""
_FORMAT_KEY = "packtrain_reference"
_FORMAT = "1"
"""Version of the file, which its metadata have under `_FORMAT_KEY`."""
_DIGEST_BYTES = 16
"""Bytes of a row's digest: two 64-bit numbers."""
_SCHEMA = schema_without_nulls({"logps": lists_of(pa.float64()), "digest": pa.binary(_DIGEST_BYTES)})
_HEADER_BYTES = 1 << 20
"""More than the headers of a reference file take."""


@dataclass(frozen=True)
class Reference:
    """Log-probabilities of all documents of a split, D documents in R rows."""

    key: Mapping[str, str]
    """By what it was computed: a text for each of `KEYS`."""
    logps: NDArray[np.float64]
    """(D,) in the stored order."""
    bounds: NDArray[np.int64]
    """(R + 1,) where the documents of each row begin, then D."""
    digests: NDArray[np.int64]
    """(R, 2) a hash of each row's tokens, labels and bounds, as two 64-bit numbers."""

    def of_row(self, index: int, documents: int) -> NDArray[np.float64]:
        """(documents,) the log-probabilities of the documents of row `index` of the split.

        Raises:
            IntegrityError: the row has another number of documents.
        """
        values = self.logps[self.bounds[index] : self.bounds[index + 1]]
        if len(values) != documents:
            raise IntegrityError(
                f"the reference has {plural(len(values), 'value')} for row {index:,}, which has "
                f"{plural(documents, 'document')}; delete its file, and it is computed again"
            )
        return values

    def of_content(self, row: Row) -> NDArray[np.float64]:
        """(D,) the log-probabilities of the documents of a row whose place in the split is not known.

        Raises:
            ConfigError: the split has no such row.
        """
        first, second = digest_of(row).tolist()
        index = self._places.get((first, second))
        if index is None:
            raise ConfigError(
                "the reference has no such row: it is of another dataset or split; compute it for these rows, in a "
                "file of its own"
            )
        return self.of_row(index, len(row.seq_lengths))

    @cached_property
    def _places(self) -> dict[tuple[int, int], int]:
        """Digest → a row that has it. All others with it have the same tokens, and so the same log-probabilities."""
        return {(first, second): index for index, (first, second) in enumerate(self.digests.tolist())}

    def require_rows(self, rows: PackedRows) -> None:
        """Raise ConfigError if this is the reference of other rows."""
        if self.key["rows"] != rows.fingerprint:
            raise ConfigError(
                f"the reference is of other rows than those of {rows.files.address}: it is of {self.key['rows']}, and "
                f"they are {rows.fingerprint}; compute it for these rows, in a file of its own"
            )


def digest_of(row: Row) -> NDArray[np.int64]:
    """(2,) 128 bits of a hash of a row's tokens, labels and bounds, by which it is found."""
    content = b"".join(values.tobytes() for values in (row.input_ids, row.labels, row.seq_lengths))
    return np.frombuffer(bytes.fromhex(short_hash(content, size=_DIGEST_BYTES)), np.int64)


# The file


def read_reference(path: Path, key: Mapping[str, str], rows: int, max_docs: int) -> Reference | None:
    """The reference in a file, or None if there is no such file.

    Args:
        key: for each of `KEYS`, what the file's metadata must say.
        rows: how many it must have.
        max_docs: most documents that a row may have.

    Raises:
        ConfigError: it was computed by something else (says which key differs), or is no reference, or damaged.
    """
    # No file of these rows is larger: a float64 for each document; an offset and a digest for each row.
    limit = _HEADER_BYTES + rows * (8 * max_docs + 8 + _DIGEST_BYTES)
    try:
        content = read_regular(path, limit)
        require_bounded(memoryview(content), 0)  # before pyarrow unpacks anything: nothing may be compressed
        file = pa.ipc.open_file(pa.py_buffer(content))
        _require_key(path, file.schema.metadata or {}, key)
        if not file.schema.remove_metadata().equals(_SCHEMA):
            raise ValueError("it has other columns")
        if file.num_record_batches != 1:
            raise ValueError(f"it has {file.num_record_batches:,} record batches in place of one")
        batch = file.get_batch(0)
        batch.validate(full=True)
        if batch.num_rows != rows:
            raise ValueError(f"it has {batch.num_rows:,} rows, and must have {rows:,}")
        logps = batch.column("logps")
        digest = batch.column("digest")
        if logps.null_count or logps.values.null_count or digest.null_count:
            raise ValueError("it has values that are null")
        bounds = view(logps.offsets).astype(np.int64)
        # Arrow allows values before the first row's, which belong to no row.
        values = view(logps.values)[bounds[0] : bounds[-1]]
        bounds -= bounds[0]  # so that they count from the first value that is kept
        if not np.isfinite(values).all():
            raise ValueError("it has values that are no numbers")
        # A column of R digests, of two 64-bit numbers each: its buffer 0 says which are null, and buffer 1 has them.
        digest_numbers = np.frombuffer(digest.buffers()[1], np.int64, count=2 * rows).reshape(rows, 2)
    except FileNotFoundError:
        return None
    except ConfigError:  # which is a ValueError, too
        raise
    except OSError as error:
        raise ConfigError(f"the reference {path} cannot be read: {error.strerror}") from error
    except (ValueError, pa.ArrowException) as error:
        # pyarrow's messages may quote the file.
        raise ConfigError(
            f"the reference {path} cannot be read: {escape_line(str(error))[:200]}; delete it, and it is computed again"
        ) from error
    return Reference(dict(key), values, bounds, digest_numbers)


def _require_key(path: Path, metadata: Mapping[bytes, bytes], expected: Mapping[str, str]) -> None:
    """Require that the untrusted metadata of a file say what is expected under each of `KEYS`.

    Raises:
        ConfigError: one differs; says which.
        ValueError: the file holds no reference of this version.
    """
    if metadata.get(_FORMAT_KEY.encode()) != _FORMAT.encode():
        raise ValueError("it is not a reference of this version of packtrain")
    for name in KEYS:
        value = metadata.get(name.encode(), b"").decode(errors="replace")
        if value != expected[name]:
            raise ConfigError(
                f"the reference {path} is of something else: {name} differs: it is of {escape_line(value)[:80]!r}, "
                f"and this training has {expected[name]!r}; put this one into another file, or delete {path.name}, and "
                "it is computed again from the reference's weights"
            )


def write_reference(path: Path, reference: Reference) -> None:
    """Write a reference. Its file appears with all of its content, in place of an earlier one.

    Raises:
        StoreError: it cannot be written.
    """
    metadata = {_FORMAT_KEY: _FORMAT, **{name: reference.key[name] for name in KEYS}}
    schema = _SCHEMA.with_metadata(metadata)
    columns = [
        lists(reference.bounds, reference.logps, _SCHEMA.field("logps").type),
        digests([digest.tobytes() for digest in reference.digests], _DIGEST_BYTES),
    ]
    draft = path.with_name(f".{path.name}.part-{os.getpid()}")  # another process writes another file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)  # of an earlier process with this number, which was killed
        try:
            with draft.open("xb") as file:
                with pa.ipc.new_file(file, schema) as writer:
                    writer.write_batch(pa.record_batch(columns, schema=schema))
                # On the disk before it has its name: a file that a crash cut short would be refused.
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"the reference {path} cannot be written: {error.strerror or error}") from error
