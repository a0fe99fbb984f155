"""Seconds of single kernels on one device."""
