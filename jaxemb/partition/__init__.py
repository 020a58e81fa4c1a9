"""Sub-models that are trained apart and merged once."""
