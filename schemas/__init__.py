"""The rows and records that cross a boundary. Imports nothing else of packtrain."""
