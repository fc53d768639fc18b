"""What is wrong with a setting, in words: where it was given, which one, what it held, and what to do."""

from __future__ import annotations

import difflib
import os
import types
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from pydantic import BaseModel

from collectors.urls import masked_url
from eplb.config.sources import ENV_DELIMITER, ENV_PREFIX, Location, Source, format_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

LONGEST_VALUE = 80
"""Characters of a wrong value that a message repeats."""


def explain(error: ValidationError, model: type[BaseModel], sources: Sequence[Source]) -> str:
    """One line a problem: ``place: setting: what is wrong; what to do``. ``sources`` stand in rising order of rank."""
    found = error.errors()
    # A sequence whose only item is wrong is also reported as too short, which is not the cause.
    causes = [one for one in found if one["type"] != "too_short" or not _has_inner(one["loc"], found)]
    return "\n".join(_line(details, model, sources) for details in causes)


def _has_inner(path: Location, found: Sequence[ErrorDetails]) -> bool:
    return any(len(other["loc"]) > len(path) and other["loc"][: len(path)] == path for other in found)


def _line(details: ErrorDetails, model: type[BaseModel], sources: Sequence[Source]) -> str:
    path: Location = details["loc"]
    kind = details["type"]
    if kind == "extra_forbidden":
        return f"{_place(path, sources)}: unknown setting{_suggestion(path, model)}"
    if kind == "missing":
        return f"{_place(path, sources)}: is missing{_description(path, model)}"
    message = details["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{_place(path, sources)}: {message}"
    return f"{_place(path, sources)}: {_shown(path, details['input'])} is not allowed: {_lower_first(message)}{_description(path, model)}"


def _place(path: Location, sources: Sequence[Source]) -> str:
    """The source that gave the setting, or else the lowest one, and the setting's path as that source writes it."""
    for source in reversed(sources):
        if path and source.gives(path):
            if source.name == "environment":
                return f"environment: {_variable(path)}"
            return f"{source.name}: {format_path(path)}"
    name = sources[0].name if sources else "settings"
    return f"{name}: {format_path(path)}" if path else name


def _variable(path: Location) -> str:
    """The variable that gave the setting: its own, one of a setting inside it, or one that holds a whole section."""
    name = ENV_PREFIX + ENV_DELIMITER.join(str(key).upper() for key in path)
    given = [
        other
        for other in os.environ
        if other.upper() == name or other.upper().startswith(name + ENV_DELIMITER)
    ]
    return given[0] if given else name


def _shown(path: Location, value: Any) -> str:
    if (path and path[-1] in ("password", "token")) or isinstance(value, dict):
        return "(not shown)"
    text = repr(masked_url(value)) if path and path[-1] == "url" and isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def _lower_first(message: str) -> str:
    return message[:1].lower() + message[1:]


def _suggestion(path: Location, model: type[BaseModel]) -> str:
    key = str(path[-1])
    section = _model_at(path[:-1], model)
    known = list(section.model_fields) if section else []
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    elsewhere = [format_path(other) for other in _paths(model) if other[-1] == key]
    if elsewhere:
        return f" here; it belongs at {elsewhere[0]}"
    return f"; known here: {', '.join(known)}" if known else ""


def _description(path: Location, model: type[BaseModel]) -> str:
    section = _model_at(path[:-1], model)
    field = section.model_fields.get(str(path[-1])) if section else None
    if field is None:
        return ""
    if field.description:
        return f"; {_lower_first(' '.join(field.description.split()))}"
    inner = _model_of(field.annotation)
    return f"; it has the settings {', '.join(inner.model_fields)}" if inner else ""


def _model_at(path: Location, model: type[BaseModel]) -> type[BaseModel] | None:
    """The section that the path leads to, or None."""
    section: type[BaseModel] | None = model
    for key in path:
        if isinstance(key, int):
            continue
        field = section.model_fields.get(key) if section else None
        section = _model_of(field.annotation) if field else None
    return section


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The section type inside an annotation such as ``Section``, ``Section | None`` or ``tuple[Section, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (tuple, list, Union, types.UnionType):
        for argument in get_args(annotation):
            found = _model_of(argument)
            if found:
                return found
    return None


def _paths(model: type[BaseModel], before: Location = ()) -> Iterator[Location]:
    """Paths of all settings, sequences shown by their first item."""
    for name, field in model.model_fields.items():
        inner = _model_of(field.annotation)
        path = (*before, name)
        if inner is None:
            yield path
        else:
            yield from _paths(inner, (*path, 0) if get_origin(field.annotation) is tuple else path)
