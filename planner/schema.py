"""JSON schemas of the project's own files, derived from the classes that read them."""

from typing import Any

from planner import measurement, plan

FILES = {
    "plan": (plan.Plan, plan.SCHEMA_VERSION),
    "measurement": (measurement.Measurement, measurement.SCHEMA_VERSION),
}


def file_schema(kind: str) -> dict[str, Any]:
    """The schema of one kind of file, its head of kind and versions included.

    Raises:
        ValueError: If there is no file of that kind.

    >>> file_schema("plan")["properties"]["schema_version"]
    {'const': 1}
    """
    from pydantic import TypeAdapter

    if kind not in FILES:
        raise ValueError(f"no schema of {kind!r}; there is one of {', '.join(FILES)}")
    of, version = FILES[kind]
    body = TypeAdapter(of).json_schema()
    head = {
        "kind": {"const": kind},
        "schema_version": {"const": version},
        "program_version": {"type": "string"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **body,
        "title": f"{kind}, version {version}",
        "properties": {**head, **body["properties"]},
        "required": [*head, *body.get("required", [])],
    }
