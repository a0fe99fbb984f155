"""Hand a plan to the frameworks that people run."""
