"""Kinds of values: each reads the text that the user wrote, and says itself as JSON Schema.

A `title` says what a value must be; it stands in the schema and, after `expected`, in refusals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, PydanticKnownError
from pydantic_core.core_schema import no_info_before_validator_function

from orchestrator.config import units, words
from orchestrator.config.messages import Step

SIZE = r"^[0-9]+(\.[0-9]+)? ?([KMGTkmgt]i?)?[Bb]$"
DURATION = r"^([0-9]+(\.[0-9]+)? ?(ms|min|[smhd]) ?)+$"
SWITCH = "^([Tt]rue|[Yy]es|[Oo]n|[Ff]alse|[Nn]o|[Oo]ff|TRUE|YES|ON|FALSE|NO|OFF)$"
GPUS = "^ *[0-9]+( *- *[0-9]+)?( *, *[0-9]+( *- *[0-9]+)?)* *$"
REFUSAL = "refusal"
"""type of the errors whose text is a whole sentence"""


def refuse(*refusals: tuple[str, tuple[Step, ...]]) -> None:
    """Raise all (sentence, place below the value that is being checked), if there are any."""
    errors = [
        InitErrorDetails(type=PydanticCustomError(REFUSAL, "{text}", {"text": text}), loc=below, input=None)
        for text, below in refusals
    ]
    if errors:
        raise ValidationError.from_exception_data("settings", errors)


def _written(parse: Callable[[str], Any]) -> BeforeValidator:
    def read(value: object) -> Any:
        if not isinstance(value, str):
            raise PydanticKnownError("string_type")
        return parse(value)

    return BeforeValidator(read)


def _schema(title: str, pattern: str = ".", types: str | list[str] = "string", **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": types, "title": title, "pattern": pattern, **more})


Item = TypeVar("Item")
Several = Annotated[tuple[Item, ...], Field(min_length=1)]


def or_one(value: Any) -> Any:
    """A list, whose single item may stand without brackets."""
    return (value,) if isinstance(value, str) else value


class _OrOne:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(or_one, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        several = handler(schema)
        return {"anyOf": [several["items"], several]}


OneOrMore = Annotated[Several[Item], _OrOne()]


Text = Annotated[str, AfterValidator(words.text), _schema("some text")]
Pathname = Annotated[str, AfterValidator(words.text), _schema("a path")]
Name = Annotated[str, AfterValidator(words.name), _schema("a name", words.NAME_PATTERN)]
Variable = Annotated[str, AfterValidator(words.variable), _schema("the name of a variable", words.VARIABLE_PATTERN)]
Target = Annotated[str, AfterValidator(words.ssh_target), _schema("an ssh target", r"^[^-\s][^\s]*$")]
RemoteFolder = Annotated[str, AfterValidator(words.remote_folder), _schema("a folder")]
Layout = Annotated[str, AfterValidator(words.layout), _schema("a layout")]
Progress = Annotated[str, AfterValidator(words.progress), _schema("a preset or regular expression")]
ResultFile = Annotated[str, AfterValidator(words.result_file), _schema("a file name")]
Server = Annotated[str, AfterValidator(words.server), _schema("a URL", "^https?://")]
EnvText = Annotated[str, _schema("a value", "", ["string", "number", "boolean"])]
Count = Annotated[int, _written(units.whole_number), Field(title="a whole number above zero", ge=1)]
Number = Annotated[int, _written(units.whole_number), Field(title="a whole number", ge=0)]
Argv = Annotated[Several[Text], Field(title="a list: program and arguments, such as [pass, show, token]")]
Switch = Annotated[bool, _written(units.yes_or_no), _schema("true or false", SWITCH, ["boolean", "string"])]
Size = Annotated[int, _written(units.size), _schema("a size like 60GiB", SIZE, ["integer", "string"], minimum=1)]
Duration = Annotated[
    float,
    _written(units.duration),
    _schema("a duration like 6h", DURATION, ["number", "string"], exclusiveMinimum=0),
]
Gpus = Annotated[
    tuple[int, ...],
    _written(units.gpu_range),
    _schema("GPU numbers like 0-4 or 5,7", GPUS, ["integer", "string"], minimum=0, maximum=units.HIGHEST_GPU),
]
GpuRanges = Annotated[OneOrMore[Gpus], Field(title="GPU numbers like 0-4 or 5,7, or a list of them")]
