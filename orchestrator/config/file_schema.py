"""JSON Schema of the files, for editors and for refusals: from the models that read them."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from orchestrator.config.settings import HostsFile, JobFile, Settings, UserFile
from orchestrator.errors import ConfigError

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILES: dict[str, tuple[type[Settings], str]] = {
    "hosts": (HostsFile, "hosts.yaml of orch"),
    "job": (JobFile, "jobs/*.yaml of orch"),
    "config": (UserFile, "config.yaml of orch"),
}


def schema(name: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `hosts`, `job` or `config`. Raises ConfigError for another name."""
    if name not in FILES:
        raise ConfigError(f"no schema {name!r}; known: {', '.join(FILES)}")
    model, title = FILES[name]
    return {"$schema": DIALECT, **model_schema(model), "title": title}


def model_schema(model: type[Settings]) -> dict[str, Any]:
    """JSON Schema of a model, whole: without references, so that a value's schema is found by its place alone."""
    whole = model.model_json_schema(schema_generator=_FileSchema)
    definitions = whole.pop("$defs", {})

    def inlined(node: Any) -> Any:
        if isinstance(node, list):
            return [inlined(item) for item in node]
        if not isinstance(node, dict):
            return node
        node = definitions.get(node.get("$ref", "").rpartition("/")[2], {}) | node
        return {key: inlined(value) for key, value in node.items() if key != "$ref"}

    schema: dict[str, Any] = inlined(whole)
    return schema


class _FileSchema(GenerateJsonSchema):
    """Says what a file may hold: keys may be left out, but no value is ever null."""

    def nullable_schema(self, schema: Any) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        key, value = (self.generate_inner(schema[part]) for part in ("keys_schema", "values_schema"))
        return {"type": "object", "additionalProperties": value, "propertyNames": key}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
