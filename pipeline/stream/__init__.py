"""Makes windows of packed rows straight from the sources, for `PackedStream`."""
