"""Graphs: nodes and the edges between them."""
