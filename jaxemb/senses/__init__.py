"""Several vectors per word: the mixture models and what they need."""
