"""The embedded corpus: a small encyclopedia written by a generator."""
