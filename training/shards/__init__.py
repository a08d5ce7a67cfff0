"""Access to packed rows: local shards are mapped; remote ones are downloaded, checked and kept in a bounded cache."""
