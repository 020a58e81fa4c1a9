"""Kernels for TPUs, by Pallas; no TPU has run them yet."""
