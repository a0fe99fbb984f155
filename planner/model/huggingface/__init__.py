"""Models from a Hugging Face ``config.json``: data in, a ``Model`` out, no code of theirs run."""

from planner.model.huggingface.reader import model_from_config, read_model

__all__ = ["model_from_config", "read_model"]
