"""How large the rows of a Parquet row group become when they are decoded, counted before they are.

A column with a dictionary stores each value once, and a number for each row: 200,000 rows of one text of 100 KB are a
file of 5 KB, and 20 GB of text. Footers say only what is stored. So the lengths of such values are added up.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_BATCH_ROWS = 1 << 14
"""Rows whose values are counted at once."""


def decoded_bytes(data: memoryview, metadata: Any, group: int, limit: int) -> tuple[int, int]:
    """How large the columns with dictionaries of a row group become when they are decoded.

    Returns (bytes of all their values, bytes of the longest value of each column, added up). The second is what a row
    takes at most, if it has one value in each column. Both are 0 if no column can exceed the limit.

    Args:
        data: the file.
        metadata: its pyarrow.parquet.FileMetaData.
        group: number of the row group.
        limit: columns that cannot have more bytes than this are not counted, and counting ends when there are more.
    """
    import pyarrow.parquet as pq

    names = _suspicious_columns(metadata.row_group(group), limit)
    if not names:
        return 0, 0
    total = 0
    longest_row = 0
    with pq.ParquetFile(pa.BufferReader(data), read_dictionary=names) as file:
        for name in names:
            longest_value = 0
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[name], use_threads=False):
                batch_bytes, batch_longest = _value_bytes(batch.column(0))
                total += batch_bytes
                longest_value = max(longest_value, batch_longest)
                if total > limit:
                    break
            longest_row += longest_value
    return total, longest_row


def _suspicious_columns(row_group: Any, limit: int) -> list[str]:
    """The paths of the columns with a dictionary that may decode to more bytes than the limit."""
    names = []
    for index in range(row_group.num_columns):
        column = row_group.column(index)
        has_dictionary = column.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in name for name in column.encodings)
        # No value is longer than what the column stores.
        if has_dictionary and column.num_values * max(column.total_uncompressed_size, 1) > limit:
            names.append(column.path_in_schema)
    return names


def _value_bytes(column: pa.Array) -> tuple[int, int]:
    """(Bytes of all values, bytes of the longest value) of a column, also of values in lists and objects."""
    while not pa.types.is_dictionary(column.type):
        if pa.types.is_struct(column.type):
            column = column.flatten()[0]  # the only one: the batch was read for one column of the file
        elif isinstance(column, pa.ExtensionArray):
            column = column.storage
        elif isinstance(column, pa.MapArray):
            key_bytes, longest_key = _value_bytes(column.keys)
            item_bytes, longest_item = _value_bytes(column.items)
            return key_bytes + item_bytes, longest_key + longest_item
        elif isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
            column = column.flatten()
        else:  # read without a dictionary, as it lies; no value is longer than all of them
            return column.nbytes, column.nbytes
    # How long each value of the dictionary is, times how often it occurs: lengths 3 and 100, of which the first occurs
    # five times and the second twice, are 215 bytes.
    lengths = pc.fill_null(pc.binary_length(column.dictionary), 0).to_numpy(zero_copy_only=False)
    indices = pc.drop_null(column.indices).to_numpy(zero_copy_only=False)
    counts = np.bincount(indices, minlength=len(lengths))
    return int((counts * lengths.astype(np.int64)).sum()), int(lengths.max(initial=0))
