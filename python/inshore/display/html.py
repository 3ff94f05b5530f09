"""The HTML that ``_repr_html_`` methods return to notebooks: titles, tables and facts.

The HTML has no scripts and no style sheets, since notebooks remove both from documents that they do not
trust. The HTML has no colours, so that it fits light and dark themes. All text is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

# The largest numbers of rows and columns that a table shows, and the largest number of characters of a value.
ROWS_MAX = 10
COLUMNS_MAX = 20
_VALUE_CHARACTERS_MAX = 80

# The number of first bytes of a binary value that are shown.
_VALUE_BYTES_MAX = 16

_FAINT = "opacity: 0.65; font-size: 90%"
_UNIT = 1024
_UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]


def panel(kind: str, title: str, *parts: str) -> str:
    """Return the HTML of one object: its kind and title in one line, then the parts.

    >>> panel("Store", "a & b", note("empty"))
    '<div class="inshore"><div><b>Store</b> a &amp; b</div><div style="...">empty</div></div>'
    """
    return f'<div class="inshore"><div><b>{_text(kind)}</b> {_text(title)}</div>{"".join(parts)}</div>'


def note(text: str) -> str:
    """Return the HTML of a line below a table."""
    return f'<div style="{_FAINT}">{_text(text)}</div>'


def facts(values: Mapping[str, object]) -> str:
    """Return the HTML of names and values, with one line for each name.

    >>> facts({"edges": 2})
    '<table class="dataframe"><tbody><tr><th style="...">edges</th><td style="...">2</td></tr>...'
    """
    lines = (
        _row([_cell("th", name, is_right=False), _cell("td", _shown(value), is_right=False)])
        for name, value in values.items()
    )
    return _table("", lines)


def grid(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return the HTML of rows of values below the names of columns."""
    head = _row(_cell("th", name, is_right=False) for name in columns)
    return _table(head, (_row(_value(value) for value in row) for row in rows))


def first_rows(table: pa.Table) -> str:
    """Return the HTML of the first rows of a table, with names and types of the columns."""
    fields = list(table.schema)[:COLUMNS_MAX]
    names = [
        f'<th style="text-align: left">{_text(_shown(field.name))}<br>'
        f'<span style="{_FAINT}; font-weight: normal">{_text(_shown(str(field.type)))}</span></th>'
        for field in fields
    ]
    hidden = len(table.schema) - len(fields)
    more = [f'<th style="{_FAINT}">{count(hidden, "more column")}</th>'] if hidden > 0 else []
    columns = [_values(table.column(at).slice(0, ROWS_MAX)) for at in range(len(fields))]
    end = ["<td>…</td>"] if hidden > 0 else []
    shown = min(table.num_rows, ROWS_MAX)
    lines = (_row([*(_value(column[at]) for column in columns), *end]) for at in range(shown))
    return _table(_row([*names, *more]), lines)


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "row"), count(1234567, "row")
    ('1 row', '1,234,567 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_bytes(size: int) -> str:
    """Return a size in the largest unit in which the number is at least 1, as the command line prints it.

    >>> [format_bytes(size) for size in (0, 1536, 64 << 20)]
    ['0 bytes', '1.5 KiB', '64 MiB']
    """
    value, unit = float(size), 0
    while value >= _UNIT and unit + 1 < len(_UNITS):
        value, unit = value / _UNIT, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if value.is_integer() else f"{value:.1f} {_UNITS[unit]}"


def _values(column: pa.ChunkedArray[Any]) -> list[Any]:
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        # Python has no dates after the year 9999, and no nanoseconds.
        return column.cast(pa.string()).to_pylist()


def _table(head: str, lines: Iterable[str]) -> str:
    above = f"<thead>{head}</thead>" if head else ""
    return f'<table class="dataframe">{above}<tbody>{"".join(lines)}</tbody></table>'


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _cell(tag: str, value: str, *, is_right: bool) -> str:
    return f'<{tag} style="text-align: {"right" if is_right else "left"}">{_text(value)}</{tag}>'


def _value(value: object) -> str:
    if value is None:
        return f'<td style="{_FAINT}">null</td>'
    return _cell(
        "td", _shown(value), is_right=isinstance(value, (int, float)) and not isinstance(value, bool)
    )


def _shown(value: Any) -> str:
    """Return a value as one short line of text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return value[:_VALUE_BYTES_MAX].hex(" ") + (" …" if len(value) > _VALUE_BYTES_MAX else "")
    text = str(value)[: _VALUE_CHARACTERS_MAX + 1]
    line = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return line if len(text) <= _VALUE_CHARACTERS_MAX else f"{line[:_VALUE_CHARACTERS_MAX]}…"


def _text(text: str) -> str:
    return html.escape(text)
