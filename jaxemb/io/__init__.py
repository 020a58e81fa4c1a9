"""Readers of files that several kinds of data share."""
