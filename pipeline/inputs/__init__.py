"""Reads inputs of all kinds and cuts them into blocks: lines, CSV, Parquet, Arrow, compressed and remote files."""
