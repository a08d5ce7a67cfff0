"""Pure functions over rows and record batches: no file, no network, no clock."""
