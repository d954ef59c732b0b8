"""Sizes in bytes, as people write and read them.

Bytes are exact integers everywhere in memfit.  ``GiB`` is 2**30 and ``GB`` is 10**9; a bare
letter (``1.5g``) means the binary unit, as in ``PYTORCH_ALLOC_CONF`` and ``docker run --memory``.
"""

from __future__ import annotations

import re
from decimal import Decimal

from memfit.errors import BadInput

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30
TiB = 1 << 40

_FACTORS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _FACTORS[_letter] = _FACTORS[f"{_letter}ib"] = 1 << (10 * _power)
    _FACTORS[f"{_letter}b"] = 1000**_power

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of ``24GiB``, ``24GB``, ``1.5g``, ``512MiB`` or ``1000``.

    Raises:
        BadInput: the text is not a size, is zero bytes, or is more than any machine has.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise BadInput(f"{text!r} is not a size: write for example 24GiB, 24GB or 1.5g")
    num_bytes = int(Decimal(match[1]) * factor)
    if num_bytes == 0:
        raise BadInput(f"{text!r} is zero bytes: a size must be positive")
    if num_bytes >= 1 << 63:
        raise BadInput(f"{text[:40]!r} is more bytes than any machine has")
    return num_bytes


def format_size(num_bytes: int) -> str:
    """``1.50 GiB``, ``612.0 MiB``, ``2.0 KiB``, ``17 B``: binary units, two decimals at most."""
    size = abs(num_bytes)
    sign = "-" if num_bytes < 0 else ""
    if size >= TiB:
        return f"{sign}{size / TiB:.2f} TiB"
    if size >= GiB:
        return f"{sign}{size / GiB:.2f} GiB"
    if size >= MiB:
        return f"{sign}{size / MiB:.1f} MiB"
    if size >= KiB:
        return f"{sign}{size / KiB:.1f} KiB"
    return f"{sign}{size} B"


def format_duration(seconds: float) -> str:
    """``4.2 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
