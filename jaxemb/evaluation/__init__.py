"""Measures of trained vectors."""
