"""Merging of models that were trained apart."""
