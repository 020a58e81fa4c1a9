"""Embedding tables: rows in device memory."""
