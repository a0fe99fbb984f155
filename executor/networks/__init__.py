"""Plain single-device PyTorch modules, built from ``planner.model``; nothing parallel here."""

from executor.networks.chain import Chain, canonical_names, initial_values, plain_name, whole_chain

__all__ = ["Chain", "canonical_names", "initial_values", "plain_name", "whole_chain"]
