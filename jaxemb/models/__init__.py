"""Losses of looked-up rows."""
