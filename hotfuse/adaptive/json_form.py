"""Messages as JSON values, for events and whoever reads them: `Baked("8x128")` is `{"is": "Baked", "form": "8x128"}`.

What is to be read back is written by `ir/record_form`.
"""

from __future__ import annotations

import dataclasses
from typing import Any


def to_json(record: Any) -> Any:
    """A record, or a value of one of its fields, as what `json.dumps` takes."""
    if dataclasses.is_dataclass(record):
        fields = {field.name: to_json(getattr(record, field.name)) for field in dataclasses.fields(record)}
        return {"is": type(record).__name__, **fields}
    if isinstance(record, tuple):
        return [to_json(item) for item in record]
    return record
