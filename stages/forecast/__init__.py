"""What other lengths and strategies would make of the documents, from their lengths."""
