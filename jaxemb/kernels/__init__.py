"""Kernels that replace a step, or a part of it, on one kind of device."""
