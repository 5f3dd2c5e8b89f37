"""The store: streams in segment files, the journal, the state, and the two doors to disk."""
