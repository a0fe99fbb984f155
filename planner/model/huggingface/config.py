"""A Hugging Face ``config.json`` as plain data: read safely, asked by meaning, never run.

Families name the same thing differently (``n_embd``, ``d_model``, ``hidden_size``), leave out
what their class has a default for, and write ``null`` for "as usual". ``Config`` hides that:
it is asked for a quantity, looks under every name of it, and remembers what it had to assume.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner.units import MIB

LARGEST_CONFIG_BYTES = 16 * MIB  # the longest published ones (label lists) stay under 2 MiB
LARGEST_COUNT = 10**9  # of layers, heads, channels, tokens: beyond it a file is not a model

HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "dim", "model_dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "n_kv_heads",
    "attn_config.kv_n_heads",
    "multi_query_group_num",
)
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim", "d_kv")
FFN = (
    "intermediate_size",
    "ffn_dim",
    "n_inner",
    "d_ff",
    "ffn_hidden_size",
    "ffn_config.ffn_hidden_size",
    "hidden_dim",
)
VOCABULARY = ("vocab_size", "padded_vocab_size", "n_vocab")
POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "model_max_length",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One section of a config file with the class defaults of its family behind it."""

    values: Mapping[str, object]
    defaults: Mapping[str, object] = field(default_factory=dict)
    nested: bool = False
    """A section such as ``text_config`` is stored as its difference from the class, so that
    every absent key has its default; a whole file states its sizes."""
    where: str = "config"
    assumed: list[str] = field(default_factory=list)

    def find(self, names: tuple[str, ...], *, with_defaults: bool = True) -> object:
        """The first value that is not null under any of the names, else the class default."""
        for source in (self.values, self.defaults) if with_defaults else (self.values,):
            for name in names:
                value = _dotted(source, name)
                if value is not None:
                    return value
        return None

    def size(self, names: tuple[str, ...]) -> int:
        """A size that a model cannot be without.

        Raises:
            ValueError: If no name is there, or the value is not a positive whole number.
        """
        stated = self.find(names, with_defaults=False)
        if stated is None and self.nested:
            stated = self.find(names)
            if stated is not None:
                self.assumed.append(f"{names[0]} is not in the file; class default {stated}")
        if stated is None:
            raise ValueError(f"{self.where}: {names[0]} is missing")
        return self.checked(stated, names)

    def count(self, names: tuple[str, ...], default: int) -> int:
        """A whole number of 0 or more that has a class default or the default given."""
        value = self.find(names)
        return default if value is None else self.checked(value, names, least=0)

    def checked(self, value: object, names: tuple[str, ...], *, least: int = 1) -> int:
        """The value as a whole number within bounds.

        Raises:
            ValueError: Naming the key as the file has it.
        """
        key = next((n for n in names if _dotted(self.values, n) is not None), names[0])
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{self.where}: {key} must be a whole number, got {_shown(value)}")
        number = value
        if not least <= number <= LARGEST_COUNT:
            raise ValueError(
                f"{self.where}: {key} must be {least} to {LARGEST_COUNT}, got {number}"
            )
        return number

    def says(self, trait: str) -> bool:
        """Whether a trait holds: ``always``, ``never``, or what its key says."""
        if trait in ("always", "never"):
            return trait == "always"
        value = self.find((trait,))
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{self.where}: {trait} must be true or false, got {_shown(value)}")
        return bool(value)

    def text(self, name: str, default: str = "") -> str:
        """A text, or the default where it is absent.

        Raises:
            ValueError: If the value is not text.
        """
        value = self.find((name,))
        if value is None:
            return default
        if not isinstance(value, str):
            raise ValueError(f"{self.where}: {name} must be text, got {_shown(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty where it is absent.

        Raises:
            ValueError: If the value is not such a list.
        """
        value = self.find((name,))
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise ValueError(f"{self.where}: {name} must be a list of texts, got {_shown(value)}")
        return tuple(value)

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers of 0 or more; empty where it is absent.

        Raises:
            ValueError: If the value is not such a list.
        """
        value = self.find((name,))
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise ValueError(f"{self.where}: {name} must be a list, got {_shown(value)}")
        return tuple(self.checked(item, (name,), least=0) for item in value)

    def section(self, name: str) -> Mapping[str, object] | None:
        """A nested object, or None where it is absent.

        Raises:
            ValueError: If the value is not an object.
        """
        value = self.values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{self.where}: {name} must be an object, got {_shown(value)}")
        return value


def read_config(path: Path) -> dict[str, object]:
    """The object in a ``config.json``, given as the file or its folder.

    Raises:
        ValueError: In one line, if there is no such file, it is larger than any config, not
            JSON, or not an object.
    """
    if path.is_dir():
        path = path / "config.json"
    try:
        size = path.stat().st_size
        if size > LARGEST_CONFIG_BYTES:
            raise ValueError(
                f"{path} has {size / MIB:.0f} MiB, a config at most {LARGEST_CONFIG_BYTES // MIB}"
            )
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{path} is not a config: it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not JSON: it is not UTF-8 text") from None
    if not isinstance(table, dict):
        raise ValueError(f"{path} must hold one JSON object, got a {type(table).__name__}")
    return table


def _dotted(source: Mapping[str, object], name: str) -> object:
    value: object = source
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
