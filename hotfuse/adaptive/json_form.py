"""Records of this folder as JSON values and back: `Baked("8x128")` is `{"is": "Baked", "form": "8x128"}`.

Reading trusts nothing: a value that is not of the type that its field has is refused. Only types that the records use are
known: numbers, texts, truth values, literals, tuples of one type, records and unions of records.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hotfuse.errors import ParseError


def to_json(record: Any) -> Any:
    """A record, or a value of one of its fields, as what `json.dumps` takes."""
    if dataclasses.is_dataclass(record):
        fields = {field.name: to_json(getattr(record, field.name)) for field in dataclasses.fields(record)}
        return {"is": type(record).__name__, **fields}
    if isinstance(record, tuple):
        return [to_json(item) for item in record]
    return record


def from_json(hint: Any, data: Any) -> Any:
    """What `to_json` wrote: a record of the class `hint`, or of one of several. Raises ParseError."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in (int, str, bool):
        fits = type(data) is hint  # True is no number here
    elif hint is float:
        fits = type(data) in (int, float) and abs(data) <= sys.float_info.max  # so neither endless nor NaN
    elif origin is Literal:
        fits = data in parts
    elif origin is tuple:
        if isinstance(data, list):
            return tuple(from_json(parts[0], item) for item in data)
        fits = False
    else:
        return _read_record(parts if origin in (Union, types.UnionType) else (hint,), data)
    if not fits:
        raise ParseError(f"{data!r:.80} is not of type {getattr(hint, '__name__', hint)}; the text is damaged, delete it")
    return hint(data) if hint is float else data


def _read_record(kinds: tuple[Any, ...], data: Any) -> Any:
    known = {kind.__name__: kind for kind in kinds}
    kind = known.get(data.get("is")) if isinstance(data, dict) and isinstance(data.get("is"), str) else None
    if kind is None:
        raise ParseError(f"{data!r:.80} is none of {', '.join(known)}; the text is damaged, delete it")
    hints, names = get_type_hints(kind), [field.name for field in dataclasses.fields(kind)]
    if set(data) != {"is", *names}:
        raise ParseError(f"a {kind.__name__} has {', '.join(names)}, not {', '.join(data)}; the text is damaged, delete it")
    return kind(**{name: from_json(hints[name], data[name]) for name in names})
