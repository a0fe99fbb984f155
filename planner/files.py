"""Reading and writing the project's own files: versioned, validated, never half-written."""

import csv
import io
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from planner import __version__

T = TypeVar("T")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all.

    Raises:
        ValueError: If the folder cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV, whole or not at all; what a row lacks stays empty.

    Raises:
        ValueError: If the folder cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name beside it, then rename it.

    Raises:
        ValueError: If the folder cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    finally:
        if os.path.exists(name):
            os.unlink(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and numpy numbers as what JSON can hold."""
    from pydantic import TypeAdapter

    return TypeAdapter(type(value)).dump_python(value, mode="json")


def document_text(kind: str, schema_version: int, value: Any) -> str:
    """A dataclass as one JSON document with its kind and versions."""
    head = {"kind": kind, "schema_version": schema_version, "program_version": __version__}
    return json.dumps({**head, **to_plain(value)}, indent=1) + "\n"


def write_document(path: Path, kind: str, schema_version: int, value: Any) -> None:
    """Write what ``document_text`` makes."""
    write_text(path, document_text(kind, schema_version, value))


def read_document(path: Path, kind: str, schema_version: int, into: type[T]) -> T:
    """Read what ``write_document`` wrote; unknown keys are refused.

    Raises:
        ValueError: If the file is missing, not JSON, of another kind or version, or has a
            field that is missing, unknown or of the wrong type.
    """
    document = read_json(path)
    if document.get("kind") != kind:
        raise ValueError(f"{path} is not a {kind} file (its kind is {document.get('kind')!r})")
    if document.get("schema_version") != schema_version:
        raise ValueError(
            f"{path} has schema version {document.get('schema_version')!r}; "
            f"this program reads version {schema_version}"
        )
    body = {
        key: value
        for key, value in document.items()
        if key not in ("kind", "schema_version", "program_version")
    }
    return validate(body, into, where=str(path))


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object from a file.

    Raises:
        ValueError: If the file cannot be read or does not hold a JSON object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error.msg} in line {error.lineno}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path} holds a {type(document).__name__}, not a JSON object")
    return document


def validate(document: Mapping[str, Any], into: type[T], *, where: str) -> T:
    """Build a dataclass from plain values, refusing unknown keys.

    Raises:
        ValueError: Naming the first field that is wrong, and why.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(into).validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "document"
        raise ValueError(f"{where}: {field}: {first['msg']}") from None
