"""Public runs and timings, and how well the planner predicts them."""
