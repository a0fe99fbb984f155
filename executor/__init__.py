"""Run a plan with PyTorch's own parallelism and measure it."""
