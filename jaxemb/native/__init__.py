"""Training steps of a CPU as one compiled function behind XLA's FFI."""
