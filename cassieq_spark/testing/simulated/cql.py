"""Parse the statements of this package into commands: the part of CQL that they use, no more.

A statement of another form is an error when it is read, so a new one is never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

_TOKEN: Final = re.compile(r"\s*('(?:[^']|'')*'|[A-Za-z_][\w.]*|-?\d+|<=|>=|[?(),=<>*{}:])")
_EQUAL: Final = "="
_IN: Final = "IN"


class Term(NamedTuple):
    """A value of a statement: the bound one with this number, or a constant.

    Attributes:
        number: The number of the ``?``, from 0; None: it is a constant.
    """

    number: int | None
    constant: int | str | None = None

    def of(self, bound: Sequence[Any]) -> Any:
        """Return the value, given those that are bound."""
        return self.constant if self.number is None else bound[self.number]


class Relation(NamedTuple):
    """A condition on one column.

    Attributes:
        operator: ``=``, ``<``, ``<=``, ``>``, ``>=`` or ``IN``.
    """

    column: str
    operator: str
    term: Term


@dataclass(frozen=True, slots=True)
class Select:
    """A read.

    Attributes:
        from_token: The least token of a scan; None: from the first one, or no scan.
    """

    table: str
    columns: tuple[str, ...]
    where: tuple[Relation, ...] = ()
    is_distinct: bool = False
    limit: Term | None = None
    from_token: Term | None = None


class Condition(Enum):
    """The condition on a row of a statement that is no comparison of columns."""

    NOT_EXISTS = "IF NOT EXISTS"
    EXISTS = "IF EXISTS"


@dataclass(frozen=True, slots=True)
class Change:
    """An insert, update or delete of one row, or a delete of all rows below a key.

    Attributes:
        verb: ``INSERT``, ``UPDATE`` or ``DELETE``.
        values: What is written, by column; the key's columns of an insert are in ``key``.
        key: The values of the key's columns that the statement names.
        condition: It makes the statement conditional; the relations are comparisons of columns.
    """

    verb: str
    table: str
    key: Mapping[str, Term] = field(default_factory=dict)
    values: Mapping[str, Term] = field(default_factory=dict)
    ttl: Term | None = None
    at_us: Term | None = None
    condition: Condition | tuple[Relation, ...] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table's definition.

    Attributes:
        types: The type of each column, in the order of their definition.
    """

    name: str
    types: Mapping[str, str]
    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    static: frozenset[str]

    @property
    def key(self) -> tuple[str, ...]:
        """All columns of the key."""
        return self.partition + self.clustering


class _Words:
    """The words of a statement, read from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words: list[str] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self.refused(f"at {text[at:]!r}")
            self._words.append(found[1])
            at = found.end()
        self._at = 0
        self._bound = 0

    def refused(self, why: str) -> ValueError:
        """Return the error of a statement that this grammar has not."""
        return ValueError(f"the simulated Cassandra cannot read {self._text!r}: {why}")

    @property
    def next(self) -> str:
        """The next word; empty at the end."""
        return self._words[self._at] if self._at < len(self._words) else ""

    def take(self, *wanted: str) -> bool:
        """Take these words if they come next."""
        there = [one.upper() for one in self._words[self._at : self._at + len(wanted)]]
        if there != [one.upper() for one in wanted]:
            return False
        self._at += len(wanted)
        return True

    def need(self, *wanted: str) -> None:
        """Take these words, which have to come next."""
        if not self.take(*wanted):
            raise self.refused(f"no {' '.join(wanted)} before {self.next!r}")

    def name(self) -> str:
        """Take a name."""
        word = self.next
        if not re.fullmatch(r"[A-Za-z_][\w.]*", word):
            raise self.refused(f"{word!r} is no name")
        self._at += 1
        return word

    def names(self) -> list[str]:
        """Take names with commas between."""
        found = [self.name()]
        while self.take(","):
            found.append(self.name())
        return found

    def term(self) -> Term:
        """Take a value."""
        word = self.next
        self._at += 1
        if word == "?":
            self._bound += 1
            return Term(self._bound - 1)
        if re.fullmatch(r"-?\d+", word):
            return Term(None, int(word))
        if word.startswith("'"):
            return Term(None, word[1:-1].replace("''", "'"))
        raise self.refused(f"{word!r} is no value")

    def relations(self) -> list[Relation]:
        """Take conditions with AND between."""
        found = [self.relation()]
        while self.take("AND"):
            found.append(self.relation())
        return found

    def relation(self) -> Relation:
        """Take a condition on a column."""
        column = self.name()
        if column.upper() == "TOKEN":
            self.need("(")
            column = f"token({', '.join(self.names())})"
            self.need(")")
        for operator in (_EQUAL, "<=", ">=", "<", ">", _IN):
            if self.take(operator):
                return Relation(column, operator, self.term())
        raise self.refused(f"{self.next!r} compares nothing")

    def end(self) -> None:
        """Refuse whatever is left."""
        if self.next:
            raise self.refused(f"{self.next!r} is left")


def parse(text: str) -> Select | Change:
    """Parse a statement whose keyspace is written in it.

    Raises:
        ValueError: It has a form that no statement of this package had so far.
    """
    words = _Words(text)
    if words.take("SELECT"):
        found: Select | Change = _select(words)
    elif words.take("INSERT", "INTO"):
        found = _insert(words)
    elif words.take("UPDATE"):
        found = _update(words)
    elif words.take("DELETE", "FROM"):
        found = _delete(words)
    else:
        raise words.refused("it begins with no verb")
    words.end()
    return found


def _select(words: _Words) -> Select:
    is_distinct = words.take("DISTINCT")
    columns = words.names()
    words.need("FROM")
    table = words.name()
    where = words.relations() if words.take("WHERE") else []
    limit = words.term() if words.take("LIMIT") else None
    words.take("ALLOW", "FILTERING")
    tokens = [one for one in where if one.column.startswith("token(")]
    if any(one.operator != ">=" for one in tokens):
        raise words.refused("tokens have a least one only")
    return Select(
        table=table,
        columns=tuple(columns),
        where=tuple(one for one in where if one not in tokens),
        is_distinct=is_distinct,
        limit=limit,
        from_token=tokens[0].term if tokens else None,
    )


def _using(words: _Words) -> dict[str, Any]:
    """Take the time to live and the write time."""
    found: dict[str, Any] = {}
    if words.take("USING"):
        while True:
            name = "ttl" if words.take("TTL") else "at_us"
            if name == "at_us":
                words.need("TIMESTAMP")
            found[name] = words.term()
            if not words.take("AND"):
                break
    return found


def _condition(words: _Words) -> Condition | tuple[Relation, ...] | None:
    if not words.take("IF"):
        return None
    if words.take("NOT", "EXISTS"):
        return Condition.NOT_EXISTS
    if words.take("EXISTS"):
        return Condition.EXISTS
    return tuple(words.relations())


def _insert(words: _Words) -> Change:
    table = words.name()
    words.need("(")
    columns = words.names()
    words.need(")", "VALUES", "(")
    terms = [words.term()]
    while words.take(","):
        terms.append(words.term())
    words.need(")")
    condition = _condition(words)
    values = dict(zip(columns, terms, strict=True))
    using = _using(words)
    return Change("INSERT", table, values=values, condition=condition, **using)


def _update(words: _Words) -> Change:
    table = words.name()
    using = _using(words)
    words.need("SET")
    values: dict[str, Term] = {}
    while True:
        column = words.name()
        words.need(_EQUAL)
        values[column] = words.term()
        if not words.take(","):
            break
    key = _key(words)
    return Change("UPDATE", table, key, values, condition=_condition(words), **using)


def _delete(words: _Words) -> Change:
    table = words.name()
    using = _using(words)
    key = _key(words)
    return Change("DELETE", table, key, condition=_condition(words), **using)


def _key(words: _Words) -> dict[str, Term]:
    words.need("WHERE")
    relations = words.relations()
    if any(one.operator != _EQUAL for one in relations):
        raise words.refused("a change names its key")
    return {one.column: one.term for one in relations}


def parse_table(text: str) -> Table:
    """Parse a ``CREATE TABLE``; its options decide nothing here.

    Raises:
        ValueError: It has a form that no table of this package had so far.
    """
    found = re.fullmatch(
        r"CREATE TABLE IF NOT EXISTS (?:\w+\.)?(?P<name>\w+) \((?P<columns>.*)\) WITH .*",
        text.strip(),
        re.DOTALL,
    )
    if found is None:
        raise ValueError(f"the simulated Cassandra cannot read {text!r}")
    types: dict[str, str] = {}
    static: set[str] = set()
    partition: tuple[str, ...] = ()
    clustering: tuple[str, ...] = ()
    for part in re.split(r",\s*(?![^(<]*[)>])", found["columns"]):
        if part.upper().startswith("PRIMARY KEY"):
            inside = part[len("PRIMARY KEY") :].strip()[1:-1]
            wide = re.match(r"\((?P<partition>[^)]*)\),?\s*", inside)
            names = _split(inside if wide is None else inside[wide.end() :])
            partition = tuple(names[:1] if wide is None else _split(wide["partition"]))
            clustering = tuple(names[1:] if wide is None else names)
            continue
        name, kind = part.strip().split(" ", 1)
        if kind.endswith(" PRIMARY KEY"):
            partition, kind = (name,), kind.removesuffix(" PRIMARY KEY")
        if kind.endswith(" static"):
            static.add(name)
            kind = kind.removesuffix(" static")
        types[name] = kind
    return Table(found["name"], types, partition, clustering, frozenset(static))


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
