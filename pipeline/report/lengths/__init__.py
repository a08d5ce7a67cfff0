"""The comparison of lengths: what a run or a plan of other lengths would make of the documents, and the advice."""
