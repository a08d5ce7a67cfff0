"""Access to packed rows: local shards are mapped, remote ones downloaded, checked and kept in a bounded cache."""
