"""Kernels for GPUs, by Pallas."""
