"""Logs of clicks: read, encoded, and cut into batches."""
