"""Graphs: nodes and edges, as data to train on."""
