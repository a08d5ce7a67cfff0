"""How large the rows of a Parquet row group become when they are decoded, counted before they are.

A column with a dictionary stores each value once, and a number for each row: 200,000 rows of one text of 100 KB are a
file of 5 KB, and 20 GB of text. Footers say only what is stored. So the lengths of such values are added up.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_BATCH_ROWS = 1 << 14


def decoded_bytes(data: memoryview, metadata: Any, group: int, enough: int) -> tuple[int, int]:
    """The bytes of the values of a row group with dictionaries, and of the longest value of each column together.

    Args:
        data: the file.
        metadata: its pyarrow.parquet.FileMetaData.
        group: number of the row group.
        enough: bytes that no row group whose size is not counted can exceed; counting ends beyond it.
    """
    import pyarrow.parquet as pq

    names = []
    record = metadata.row_group(group)
    for index in range(record.num_columns):
        column = record.column(index)
        is_coded = column.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in name for name in column.encodings)
        # No value is longer than what the column stores.
        if is_coded and column.num_values * max(column.total_uncompressed_size, 1) > enough:
            names.append(column.path_in_schema)
    total = longest = 0
    if not names:
        return total, longest
    with pq.ParquetFile(pa.BufferReader(data), read_dictionary=names) as file:
        for name in names:
            most = 0
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[name], use_threads=False):
                bytes, value = _lengths(batch.column(0))
                total, most = total + bytes, max(most, value)
                if total > enough:
                    break
            longest += most
    return total, longest


def _lengths(column: pa.Array) -> tuple[int, int]:
    """The bytes of all values of a column within lists and objects, and of the longest."""
    while not pa.types.is_dictionary(column.type):
        if pa.types.is_struct(column.type):
            column = column.flatten()[0]
        elif isinstance(column, pa.ExtensionArray):
            column = column.storage
        elif isinstance(column, pa.MapArray):
            return tuple(map(sum, zip(_lengths(column.keys), _lengths(column.items), strict=True)))  # type: ignore[return-value]
        elif isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
            column = column.flatten()
        else:  # read without a dictionary, as it lies
            return column.nbytes, column.nbytes
    lengths = pc.fill_null(pc.binary_length(column.dictionary), 0).to_numpy(zero_copy_only=False)
    numbers = pc.drop_null(column.indices).to_numpy(zero_copy_only=False)
    counts = np.bincount(numbers, minlength=len(lengths))
    return int((counts * lengths.astype(np.int64)).sum()), int(lengths.max(initial=0))
