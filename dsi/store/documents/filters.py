"""Conditions on the columns of a table, in a small part of SQL, as Arrow expressions.

    condition:  column = 1   == <> != < <= > >=      column [not] in ('en', 'de')     column [not] between 1 and 5
                column [not] like 'A%' [escape '!']  column is [not] null        column is [not] empty
                column [not] contains 'anna'         of a column of lists
                not condition       condition and condition       condition or condition      (condition)
    column:     lang, or "any name"; case-sensitive
    value:      'a text' ('' is a quote in it), 12, -1.5, true, false, '2024-01-15', '2024-01-15T12:30:00+01:00'

A date is the whole day, in UTC: between two of them both days count, and a time of that day equals it. A time without a zone
is one of UTC. Logic has three values, as in SQL: a comparison with a missing value is unknown, `not` leaves it unknown, and
what is unknown does not match. NaN is a missing value. `like` ignores case; % stands for any text, _ for one character, and a
character after that of `escape` for itself. `is empty`: a missing value, a text of no characters, or a list of no values.
Columns and values are of one type: text, integer or float, boolean, date or time; or a list of one of these,
each of which is compared. Knows nothing of documents.
"""

import difflib
import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dsi.docids.files.checks import and_more, printable, text

MAX_LENGTH, MAX_CONDITIONS, MAX_DEPTH, MAX_PATTERN = 100_000, 1000, 50, 500
"""Limits of a filter: its characters, its comparisons, parentheses and `not` within each other, characters after `like`."""

_COMPARISONS = {
    "=": operator.eq, "==": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_KEYWORDS = {"and", "or", "not", "in", "between", "like", "contains", "is", "null", "empty", "true", "false"}
_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<text>'(?:[^']|'')*')
      | (?P<name>"(?:[^"]|"")*")
      | (?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<word>[^\W\d]\w*)
      | (?P<sign><>|!=|<=|>=|==|[=<>(),])""",
    re.VERBOSE,
)
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
_KINDS = {
    **dict.fromkeys(_INTEGERS, "integer"),
    **dict.fromkeys((pa.float16(), pa.float32(), pa.float64()), "float"),
    **dict.fromkeys((pa.string(), pa.large_string()), "text"),
    pa.bool_(): "boolean",
    **dict.fromkeys((pa.date32(), pa.date64()), "time"),
    **{pa.timestamp(unit, zone): "time" for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")},
}
_LIST = "list of "
_EXAMPLES = {
    "integer": "numbers", "float": "numbers", "text": "texts in single quotes", "boolean": "true and false",
    "time": "dates in single quotes, such as '2024-01-15' or '2024-01-15T12:30:00Z'",
}  # fmt: skip
_ARROW = {
    "integer": pa.int64(), "float": pa.float64(), "text": pa.string(), "boolean": pa.bool_(), "time": pa.timestamp("us"),
}  # fmt: skip


def as_expression(where: str, table: pa.Table) -> tuple[pc.Expression, pa.Table]:
    """Return a condition as an Arrow expression, and the table that it is for, with a column more for each `contains`."""
    if len(text(where, "where")) > MAX_LENGTH:
        raise ValueError(
            f"where must have at most {MAX_LENGTH:,} characters, got {len(where):,}; use a mask of booleans."
        )
    parser = _Parser(where, table)
    return parser.whole(), parser.table


def columns_line(schema: pa.Schema, most: int = 30) -> str:
    """Return what a message says of the columns; one without any value is none of them."""
    return "the columns with values are " + ", ".join(schema.names[:most]) + and_more(len(schema) - most)


class _Token(NamedTuple):
    """A piece of a condition: its kind, its value (keywords in lower case), and the place of its first character."""

    kind: str
    value: str
    start: int


class _Column(NamedTuple):
    """A column: its name, "integer", "float", "text", "boolean", "time" or "list of" one, its values, missing ones null."""

    name: str
    kind: str
    values: pc.Expression


class _Parser:
    """A condition, read by recursive descent."""

    def __init__(self, where: str, table: pa.Table) -> None:
        self.where, self.table, self.schema = where, table, table.schema
        self.depth = self.conditions = self.at = 0
        self.token = self._next()

    def whole(self) -> pc.Expression:
        expression = self._either()
        if self.token.kind != "end":
            self._expected("`and`, `or` or the end")
        return expression

    # The grammar, from what binds least to what binds most.

    def _either(self) -> pc.Expression:
        return self._joined("or", self._both, operator.or_)

    def _both(self) -> pc.Expression:
        return self._joined("and", self._single, operator.and_)

    def _joined(self, word: str, part: Callable[[], pc.Expression], join: Callable[[Any, Any], Any]) -> pc.Expression:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        while len(parts) > 1:  # in pairs: Arrow evaluates by recursion, so an expression must not be deep
            parts = [reduce(join, parts[start : start + 2]) for start in range(0, len(parts), 2)]
        return parts[0]

    def _single(self) -> pc.Expression:
        self.depth += 1
        if self.depth > MAX_DEPTH + 1:  # the condition itself counts as one
            self._fail(f"parentheses and `not` may be nested {MAX_DEPTH} deep")
        if self._take("not"):
            expression = ~self._single()
        elif self._take("("):
            expression = self._either()
            self._need(")")
        else:
            expression = self._condition()
        self.depth -= 1
        return expression

    def _condition(self) -> pc.Expression:
        self.conditions += 1
        if self.conditions > MAX_CONDITIONS:
            self._fail(f"a filter may have {MAX_CONDITIONS} conditions; use `in (…)` or a mask of booleans")
        column = self._column()
        if self._take("is"):
            negated = self._take("not")
            expression = column.values.is_null()
            if self._take("empty"):
                expression |= _is_empty(column)
            elif not self._take("null"):
                self._expected("null or empty")
        else:
            negated = self._take("not")
            expression = self._test(column, negated)
        return ~expression if negated else expression

    def _test(self, column: _Column, negated: bool) -> pc.Expression:
        """Read what stands after a column, and `not`: a comparison, `in`, `between`, `like` or `contains`."""
        sign = self.token.value
        if self._take("contains"):
            return self._contains(column)
        if column.kind.startswith(_LIST):
            self._expected(f"contains or is, as {column.name} is a column of lists")
        if self._take("in"):
            return self._among(column)
        if self._take("between"):
            least = self._compared(column, operator.ge)
            self._need("and")
            return least & self._compared(column, operator.le)
        if self._take("like"):
            return self._like(column)
        if negated or self.token.kind != "sign" or sign not in _COMPARISONS:
            self._expected(
                "in, between, like or contains" if negated else "=, <>, <, <=, >, >=, in, between, like, contains or is"
            )
        self._take(sign)
        return self._compared(column, _COMPARISONS[sign])

    def _compared(self, column: _Column, compare: Callable[[Any, Any], Any]) -> pc.Expression:
        values, value = column.values, self._value(column)
        if column.kind == "time":
            return _compared_times(values, value, compare)
        kind = _ARROW[column.kind]
        if column.kind == "integer" and isinstance(value, float):  # between two, so rounded large ones do no harm
            kind = pa.float64()
            values = values.cast(kind, safe=False)
        return compare(values, pa.scalar(value, kind))

    def _among(self, column: _Column) -> pc.Expression:
        self._need("(")
        values = [self._value(column)]
        while self._take(","):
            values.append(self._value(column))
        self._need(")")
        if column.kind == "time":
            return reduce(operator.or_, (_compared_times(column.values, value, operator.eq) for value in values))
        if column.kind == "integer":
            values = [value for value in values if isinstance(value, int)]  # no integer equals 1.5
        among = column.values.isin(pa.array(values, _ARROW[column.kind]))
        return pc.if_else(column.values.is_valid(), among, pa.scalar(None, pa.bool_()))

    def _contains(self, column: _Column) -> pc.Expression:
        if not column.kind.startswith(_LIST):
            remedy = "; like '%…%' finds a part of a text" if column.kind == "text" else ""
            self._fail(f"contains needs a column of lists, {column.name} is a column of {column.kind} values{remedy}")
        kind, lists = column.kind.removeprefix(_LIST), self.table[column.name].combine_chunks()
        test = self._compared(_Column(column.name, kind, _values("value", kind)), operator.eq)
        from pyarrow.dataset import dataset  # takes long

        single = pa.table({"value": pc.list_flatten(lists)})
        equal = dataset(single).to_table(columns={"equal": test})["equal"].fill_null(False)
        found = np.zeros(len(lists), dtype=bool)
        found[pc.list_parent_indices(lists).filter(equal.combine_chunks())] = True
        name = f"{column.name} contains"
        while name in self.table.column_names:
            name += "'"
        self.table = self.table.append_column(
            name, pa.array(found, mask=lists.is_null().to_numpy(zero_copy_only=False))
        )
        return pc.field(name)

    def _like(self, column: _Column) -> pc.Expression:
        if column.kind != "text":
            self._fail(f"like needs a column of texts, {column.name} is a column of {column.kind} values")
        start, pattern = self.token.start, self._value(column)
        if len(pattern) > MAX_PATTERN:
            self._fail(f"a text after like may have {MAX_PATTERN} characters, got {len(pattern)}", start)
        sign = self._escape() or "\0"  # no text of a condition holds NUL
        parts = {"%": ".*", "_": "."}
        read = re.findall(f"{re.escape(sign)}.|.", pattern, re.DOTALL)
        regex = "".join(parts.get(part) or re.escape(part[-1]) for part in read)
        return pc.match_substring_regex(column.values, rf"(?is)\A{regex}\z")

    def _escape(self) -> str:
        """Read the character that `escape` names; "" without it."""
        if self.token.kind != "word" or self.token.value.lower() != "escape":
            return ""
        self.token = self._next()
        if self.token.kind != "text" or len(self.token.value) != 1:
            self._expected("one character in single quotes")
        sign, self.token = self.token.value, self._next()
        return sign

    # Columns and values.

    def _column(self) -> _Column:
        token = self.token
        if token.kind not in ("word", "name"):
            self._expected("a column; a condition begins with one")
        if token.value not in self.schema.names:
            folded = {name.casefold(): name for name in self.schema.names}
            near = difflib.get_close_matches(token.value.casefold(), folded, n=1)
            nearest = f"the nearest is {folded[near[0]]}, and " if near else ""
            self._fail(f"no such column: {_cut(token.value)}; {nearest}{columns_line(self.schema)}")
        arrow = self.schema.field(token.value).type
        is_list = pa.types.is_list(arrow) or pa.types.is_large_list(arrow)
        kind = _KINDS.get(arrow.value_type if is_list else arrow)
        if kind is None:
            self._fail(f"{token.value} is a column of type {arrow}; filter it by a mask of booleans")
        self.token = self._next()
        if is_list:
            return _Column(token.value, _LIST + kind, pc.field(token.value))
        return _Column(token.value, kind, _values(token.value, kind))

    def _value(self, column: _Column) -> Any:
        """Read a value to which the column is compared."""
        token = self.token
        kind: str
        value: Any
        if token.kind == "text":
            kind, value = "text", token.value
        elif token.kind == "number":
            kind, value = self._number(token)
        elif token.kind == "keyword" and token.value in ("true", "false"):
            kind, value = "boolean", token.value == "true"
        elif token.kind in ("word", "name"):
            self._expected("a value; a text stands in single quotes")
        elif token.value == "null":
            self._fail(f"nothing equals null; write {column.name} is null, or is not null")
        else:
            self._expected("a value")
        if kind == "text" and column.kind == "time" and (period := _period(value)):
            kind, value = "time", period
        if kind != column.kind and {kind, column.kind} != {"integer", "float"}:
            example = _EXAMPLES[column.kind]
            self._fail(
                f"{column.name} is a column of {column.kind} values, got the {kind} {_shown(token)}; it takes {example}"
            )
        if column.kind == "integer" and value == int(value):
            value = int(value)
        if column.kind == "integer" and not -(2**63) <= value < 2**63:
            self._fail(f"{column.name} is a column of integers of 64 bits, {token.value} has more")
        self.token = self._next()
        return float(value) if column.kind == "float" else value

    def _number(self, token: _Token) -> tuple[str, int | float]:
        if len(token.value) > 50 or abs(float(token.value)) == float("inf"):
            self._fail("the number is too large or too long")
        if token.value.lstrip("+-").isdigit():
            return "integer", int(token.value)
        return "float", float(token.value)

    # Tokens and messages.

    def _next(self) -> _Token:
        """Read the next token from the text."""
        match = _TOKEN.match(self.where, self.at)
        if match and match.lastgroup == "space":
            self.at = match.end()
            match = _TOKEN.match(self.where, self.at)
        start = self.at
        if start == len(self.where):
            return _Token("end", "", start)
        if match is None:
            quote = self.where[start] in "'\""
            self._fail("a quote is never closed" if quote else f"unexpected {self.where[start]!r}", start)
        self.at, kind, value = match.end(), str(match.lastgroup), match[0]
        if kind in ("text", "name"):
            value = value[1:-1].replace(value[0] * 2, value[0])
        elif kind == "word" and value.lower() in _KEYWORDS:
            kind, value = "keyword", value.lower()
        return _Token(kind, value, start)

    def _take(self, value: str) -> bool:
        """Step over a keyword or sign if it is next."""
        if self.token.kind not in ("keyword", "sign") or self.token.value != value:
            return False
        self.token = self._next()
        return True

    def _need(self, value: str) -> None:
        if not self._take(value):
            self._expected(value)

    def _expected(self, what: str) -> NoReturn:
        self._fail(f"expected {what}, got {_shown(self.token)}")

    def _fail(self, problem: str, start: int | None = None) -> NoReturn:
        at = self.token.start if start is None else start
        first = max(0, at - 40) if len(self.where) > 100 else 0
        part = self.where[first : first + 100]
        raise ValueError(f"where {part!r} does not work at character {at + 1}: {problem}.")


def _values(name: str, kind: str) -> pc.Expression:
    """Return the values of a column of a kind; NaN is missing."""
    values = pc.field(name).cast(_ARROW[kind])
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values) if kind == "float" else values


def _is_empty(column: _Column) -> pc.Expression:
    """Return where a column holds a text of no characters, or a list of no values."""
    if column.kind == "text":
        return column.values == pa.scalar("")
    return pc.list_value_length(column.values) == 0 if column.kind.startswith(_LIST) else pc.scalar(False)


def _period(value: str) -> tuple[datetime, datetime] | None:
    """Return begin and end of the day or the moment that a text names, in UTC; None if it names none."""
    try:
        start = datetime.fromisoformat(value)
        start = start.astimezone(UTC).replace(tzinfo=None) if start.tzinfo else start
        return start, start + (timedelta(days=1) if len(value) <= len("2024-01-15") else timedelta(0))
    except (ValueError, OverflowError):
        return None


def _compared_times(
    values: pc.Expression, period: tuple[datetime, datetime], compare: Callable[[Any, Any], Any]
) -> pc.Expression:
    """Return how times compare with a day, all of which counts, or with a moment."""
    start, end = (pa.scalar(moment, _ARROW["time"]) for moment in period)
    within = (values >= start) & ((values < end) if period[0] < period[1] else (values <= end))
    if compare in (operator.eq, operator.ne):
        return within if compare is operator.eq else ~within
    after = (values >= end) if period[0] < period[1] else (values > end)
    return {operator.ge: values >= start, operator.lt: values < start, operator.gt: after, operator.le: ~after}[compare]


def _cut(value: str) -> str:
    """Return the first 50 characters of a text, those that move a cursor as in Python."""
    return printable(value if len(value) <= 50 else value[:50] + "…")


def _shown(token: _Token) -> str:
    """Return a token for a message."""
    value = _cut(token.value)
    return {"end": "the end", "text": f"'{value}'", "name": f'"{value}"'}.get(token.kind, value)
