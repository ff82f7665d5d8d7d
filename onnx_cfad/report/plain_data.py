"""Reports as one JSON object."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_json(report: Any, **further: object) -> str:
    """A report and further entries as the text of one JSON object, keys in a fixed order.

    Numbers that are not finite become null, which JSON has a word for.
    """
    entries = _plain(report) if dataclasses.is_dataclass(report) else dict(report)
    return json.dumps({**entries, **{key: _plain(value) for key, value in further.items()}}, indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
