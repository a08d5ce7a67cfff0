"""File access shared by pipeline and training: locks, requests to remote stores, and their errors."""
