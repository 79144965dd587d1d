"""A file as a model, or one ConfigError with all that is wrong: pydantic's errors as sentences with line and path."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from orchestrator.config.document import Document, NoText, described
from orchestrator.config.kinds import REFUSAL
from orchestrator.config.messages import YamlPath, did_you_mean, nearest, quoted
from orchestrator.config.settings import Settings

Model = TypeVar("Model", bound=Settings)

AT_KEY = "[key]"
"""the last step of pydantic's path to a key (not its value) that is wrong"""
SENTENCES = {
    REFUSAL: "{text}",
    "missing": "missing: {description}",
    "extra_forbidden": "unknown key; {advice}",
    "value_error": "expected {error}, found {found}",
    "literal_error": "expected {choices}, found {found}",
}
"""type of pydantic's error -> what the user reads"""
OTHER_SENTENCE = "expected {title}, found {found}"


def read(path: Path, model: type[Model], hint: str, **context: Any) -> Model:
    """The file as a model; checks of the model find `context` and, as `file`, all values. Raises ConfigError."""
    document = Document(path, hint)
    try:
        settings = model.model_validate(document.tree, context={"file": document.tree, **context})
    except ValidationError as error:
        _note(document, error.errors(include_url=False), model)
        raise document.refusal() from None
    if document.problems:
        raise document.refusal()
    return settings


def _note(document: Document, errors: list[ErrorDetails], model: type[Settings]) -> None:
    from orchestrator.config.file_schema import model_schema  # costs time that only a wrong file needs

    schema = model_schema(model)
    misspelt = {_meant(error["loc"], schema) for error in errors if error["type"] == "extra_forbidden"}
    for error in sorted(errors, key=lambda error: error["type"] == REFUSAL):  # first what can't be read at all
        path = error["loc"]
        emptied = error["type"] == "too_short" and error["input"]  # all its items are wrong, and told already
        if emptied or (error["type"] == "missing" and path in misspelt):
            continue
        at_key = error["type"] == "extra_forbidden" or path[-1:] == (AT_KEY,)
        if path not in document.lines and path and (path[-1] == AT_KEY or isinstance(path[-1], int)):
            path = path[:-1]  # the key itself; the list around a single item without brackets
        document.problem(path, _sentence(error, path, schema), document.key_lines.get(path) if at_key else None)


def _sentence(error: ErrorDetails, path: YamlPath, schema: dict[str, Any]) -> str:
    given = error["input"]
    if isinstance(given, NoText) and given.tag and error["type"] != "extra_forbidden":
        return f"the YAML tag {quoted(given.tag)} has no meaning here"
    context = error.get("ctx", {})
    words = {
        "title": "something else",
        "advice": did_you_mean(str(path[-1]), _keys(_schema_at(path[:-1], schema))) if path else "",
        "choices": context.get("expected", "").replace("'", ""),
        "found": described(given),
    }
    sentence = SENTENCES.get(error["type"], OTHER_SENTENCE)
    return sentence.format_map({**words, **_schema_at(path, schema), **context})


def _meant(path: YamlPath, schema: dict[str, Any]) -> YamlPath:
    """Where a key probably belongs that isn't known."""
    return (*path[:-1], nearest(str(path[-1]), _keys(_schema_at(path[:-1], schema))) or "")


def _schema_at(path: YamlPath, schema: dict[str, Any]) -> dict[str, Any]:
    for step in path:
        inside = "items" if isinstance(step, int) else "additionalProperties"
        found = [option.get("properties", {}).get(step, option.get(inside)) for option in _options(schema)]
        schema = next((below for below in found if isinstance(below, dict)), {})
    return schema


def _keys(schema: dict[str, Any]) -> list[str]:
    return [key for option in _options(schema) for key in option.get("properties", {})]


def _options(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [schema, *schema.get("anyOf", ()), *schema.get("allOf", ())]
