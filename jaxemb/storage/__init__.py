"""Files: checkpoints, vectors, projector."""
