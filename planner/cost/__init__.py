"""What each part of a step costs: memory, compute, communication, and their sum."""
