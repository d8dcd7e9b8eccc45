"""Random collections, configurations and conditions: right ones, ones with a flaw, and ones with bytes changed at random.

Each comes with a literal reading of the same bytes by Python alone, to compare ours with.
"""

import copy
import dataclasses
import gzip
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import tomli_w

from dsi.config import CONFIGS, Config, config_names

WORDS = [
    "", "neon", "Dvořák", "東京", "a\tb", 'say "x"', "two\nlines", "\u2028", "\x1f", "\x85", "👍", "null", "NaN", "-1",
    "\\",
]  # fmt: skip
IDS = ["a", "b7", "007", "é", "東京", "👍", "null", "-", "query-id", "a.b", "a b", '"q"', "<x>", "Q" * 60]
HOSTILE = [
    "5", "", "x", True, False, 0, -1, 7, 10**6, 10**12, 2**63, 0.5, -0.5, 1e300, float("nan"), float("inf"), [], [1],
    {}, {"x": 1},
]  # fmt: skip

# Collections


@dataclasses.dataclass
class Draft:
    """A collection before it is written."""

    corpus: list[dict[str, Any]]
    queries: list[dict[str, Any]]
    qrels: dict[str, list[list[str]]]


def words(chance: Random) -> str:
    return " ".join(chance.choice([*WORDS, "river", "gas", "metal"]) for _ in range(chance.choice([1, 2, 5, 30])))


def draft(chance: Random) -> Draft:
    """A collection that must be taken."""
    makes: dict[str, Callable[[], Any]] = {
        "lang": lambda: chance.choice(["en", "de", ""]),
        "year": lambda: chance.randrange(-5, 5),
        "flag": lambda: chance.random() < 0.5,
        "score": lambda: chance.choice([0, 1, 0.5, -2.5]),
        "é x": lambda: words(chance),
        "list": lambda: [words(chance) for _ in range(chance.randrange(3))],
        "mixed": lambda: chance.choice([1, 0.5, True, "x", "2024-02-30", ["x", 2], []]),
        "object": lambda: chance.choice([{"left": "out"}, [["left out"]], ["x", {}]]),
    }
    columns = chance.sample(sorted(makes), chance.randrange(len(makes)))
    corpus = []
    for doc_id in chance.sample(IDS, chance.randrange(1, 6)):
        own = {name: chance.choice([makes[name], lambda: None])() for name in columns if chance.random() < 0.8}
        record = {"_id": doc_id, "title": words(chance), "text": words(chance), "url": 3, "metadata": own}
        del record[chance.choice(["url", "url", "metadata", "title"])]
        corpus.append(record)
    if len(corpus) > 1 and chance.random() < 0.2:
        corpus[1]["text"] = None
    corpus[0]["text"] += " x"  # a collection of blank documents is refused
    queries = [{"_id": own, "text": words(chance)} for own in chance.sample(IDS, chance.randrange(1, 6))]
    qrels: dict[str, list[list[str]]] = {}
    for split in chance.sample(["train", "dev", "test"], chance.randrange(1, 4)):
        pairs = [(query["_id"], document["_id"]) for query in queries for document in corpus]
        chosen = chance.sample(pairs, chance.randrange(1, len(pairs) + 1))
        qrels[split] = [[*pair, chance.choice(["0", "1", "1", "3", "-1", "1.5", "1e0"])] for pair in chosen]
        first = chosen[0][0]
        further = [
            [first, "?", "1"],
            [first, "", "1"],
            ["?", corpus[0]["_id"], "1"],
            [*chosen[0], "2"],
            [first, "0", "?", "1"],
        ]
        qrels[split] += chance.sample(further, chance.choice([0, 0, 1, 2]))
    return Draft(corpus, queries, qrels)


def _set(key: str, *values: Any) -> Callable[[Draft, Random], None]:
    def flaw(own: Draft, chance: Random) -> None:
        chance.choice(own.corpus)[key] = chance.choice(values)

    return flaw


def _judge(place: int, *values: str) -> Callable[[Draft, Random], None]:
    def flaw(own: Draft, chance: Random) -> None:
        chance.choice(own.qrels[chance.choice(sorted(own.qrels))])[place] = chance.choice(values)

    return flaw


def _delete(key: str) -> Callable[[Draft, Random], None]:
    return lambda own, chance: chance.choice(own.corpus).pop(key)


FLAWS: dict[str, Callable[[Draft, Random], Any]] = {
    "no id": _delete("_id"),
    "no text": _delete("text"),
    "wrong id": _set("_id", 7.5, None, "", ["a"], "\n", "\0"),
    "wrong text": _set("text", 1, ["x"], {}),
    "wrong title": _set("title", 1, ["x"]),
    "surrogate": _set("text", "a\ud800"),
    "wrong metadata": _set("metadata", 3, "x", ["a"]),
    "reserved": _set("metadata", {"text": "x"}, {"Title": "x"}, {"doc_id": 1}),
    "large integer": _set("metadata", {"new": 2**63}, {"new": -(10**30)}),
    "document twice": lambda own, chance: own.corpus.append(dict(chance.choice(own.corpus))),
    "query twice": lambda own, chance: own.queries.append(dict(chance.choice(own.queries))),
    "wrong query": lambda own, chance: chance.choice(own.queries).update(
        chance.choice([{"text": 3}, {"_id": 3.5}, {"_id": ""}])
    ),
    "no documents": lambda own, chance: own.corpus.clear(),
    "no queries": lambda own, chance: own.queries.clear(),
    "unknown queries": lambda own, chance: [
        row.__setitem__(0, "?") for row in own.qrels[chance.choice(sorted(own.qrels))]
    ],
    "wrong relevance": _judge(-1, "x", "", "²", "--1", "9" * 30, "nan", "1\t1\t1"),
}
"""{name: what makes a right collection one that must be refused}."""


def files_of(own: Draft, chance: Random) -> dict[str, bytes]:
    """The files of a collection, written in one of the ways that are allowed."""

    def lines(records: list[dict[str, Any]]) -> bytes:
        ascii_only = chance.random() < 0.5
        rows = []
        for record in records:
            shuffled = dict(chance.sample(list(record.items()), len(record)))
            rows.append(json.dumps(shuffled, ensure_ascii=ascii_only or "\\ud8" in json.dumps(record)))
        return _joined(rows, chance)

    files = {"corpus.jsonl": lines(own.corpus), "queries.jsonl": lines(own.queries)}
    for split, rows in own.qrels.items():
        header = ["query-id\tcorpus-id\tscore"] if chance.random() < 0.7 or rows[0][0] == "query-id" else []
        files[f"qrels/{split}.tsv"] = _joined([*header, *map("\t".join, rows)], chance)
    return files


def _joined(rows: list[str], chance: Random) -> bytes:
    end = chance.choice(["\n", "\n", "\r\n"])
    mark, blank = chance.choice(["", "", "\ufeff"]), chance.choice(["", "", end, f" \t{end}"])
    return (mark + (end + blank).join(rows) + chance.choice(["", end])).encode()


def change_bytes(content: bytes, chance: Random) -> bytes:
    """Some bytes changed, cut out or repeated."""
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5])):
        place = chance.randrange(len(changed) + 1)
        stop = min(len(changed), place + chance.choice([0, 1, 1, 3, 20]))
        put = bytes(
            chance.choice(b'{}[]",:\\\t\n 019eu\0\xff\xe9\xc3\x80=.#') for _ in range(chance.choice([0, 1, 1, 4]))
        )
        changed[place:stop] = chance.choice([put, put, bytes(changed[place:stop]) * 2])
    return bytes(changed)


def write_files(files: dict[str, bytes], folder: Path, chance: Random) -> None:
    (folder / "qrels").mkdir(parents=True)
    for name, content in files.items():
        packed = name.endswith(".jsonl") and chance.random() < 0.3
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)


READ = ("_id", "doc_id", "id", "docno", "title", "text", "contents", "metadata")
"""Keys of a document that are no metadata."""


def literal_collection(
    files: dict[str, bytes],
) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, dict[str, dict[str, float]]]]:
    """Documents with their metadata, queries and judgements, read without any check; too few train queries to cut dev from."""
    rows = {
        name: [row for row in re.split("\r?\n", content.decode("utf-8-sig")) if row.strip()]
        for name, content in files.items()
    }
    documents = []
    for record in map(json.loads, rows["corpus.jsonl"]):
        further = {key: value for key, value in record.items() if key not in READ}
        metadata = {
            key: value
            for key, value in {**further, **(record.get("metadata") or {})}.items()
            if value is not None and not _is_nested(value)
        }
        doc_id = record.get("_id", record.get("doc_id"))
        own = {"doc_id": doc_id, "title": record.get("title") or "", "text": record["text"] or ""}
        documents.append({**own, **metadata})
    _one_type_a_column(documents)
    queries = {query["_id"]: query["text"] for query in map(json.loads, rows["queries.jsonl"])}
    qrels: dict[str, dict[str, dict[str, float]]] = {"train": {}, "dev": {}, "test": {}}
    for split in qrels:
        for number, row in enumerate(rows.get(f"qrels/{split}.tsv", [])):
            query_id, *_, doc_id, relevance = row.rstrip().split("\t") if "\t" in row.rstrip() else row.split()
            if (number or query_id != "query-id") and query_id in queries:
                judged = qrels[split].setdefault(query_id, {})
                judged[doc_id] = max(float(relevance), judged.get(doc_id, float("-inf")))
    return documents, queries, qrels


def _is_nested(value: Any) -> bool:
    """Whether metadata leave it out: an object, or a list that holds one or a list."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(own, list | dict) for own in value))


def _one_type_a_column(documents: list[dict[str, Any]]) -> None:
    """Make lists of the single values in a column of lists, and texts of values of several types."""
    for key in {key for document in documents for key in document} - {"doc_id", "title", "text"}:
        having = [document for document in documents if key in document]
        if any(isinstance(document[key], list) for document in having):
            for document in having:
                document[key] = document[key] if isinstance(document[key], list) else [document[key]]
        values = [own for row in having for own in (row[key] if isinstance(row[key], list) else [row[key]])]
        types = {float if type(own) is int else type(own) for own in values}
        if len(types) > 1:
            for row in having:
                row[key] = list(map(_written_out, row[key])) if isinstance(row[key], list) else _written_out(row[key])


def _written_out(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# Configurations


def sections() -> dict[str, Any]:
    """All settings with their defaults."""
    return dataclasses.asdict(Config())


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Settings with changes, whole numbers made floats where the setting is one."""
    result = copy.deepcopy(settings)
    for key, value in changes.items():
        if isinstance(value, dict):
            result[key].update({name: _as(result[key][name], own) for name, own in value.items()})
        else:
            result[key] = _as(result[key], value)
    return result


def _as(default: Any, value: Any) -> Any:
    return value if default is None else type(default)(value)


def _written_sections() -> dict[str, Any]:
    """All settings with their defaults; "" for a text that is not set."""
    return {
        key: {name: "" if own is None else own for name, own in value.items()} if isinstance(value, dict) else value
        for key, value in sections().items()
    }


def right_settings(chance: Random) -> dict[str, Any]:
    """Some of the settings of a configuration that ships, over that configuration: they change nothing."""
    name = chance.choice(config_names())
    text = (CONFIGS / f"{name}.toml").read_text(encoding="utf-8")
    own = {key: value for key, value in tomllib.loads(text).items() if key != "base" and chance.random() < 0.7}
    return {"base": name, **own}


def random_settings(chance: Random) -> dict[str, Any]:
    """Settings of the right type with values that may be out of range."""
    known, found = _written_sections(), dict[str, Any]()
    for _ in range(chance.choice([1, 1, 2, 3, 6])):
        section = chance.choice(sorted(known))
        if isinstance(known[section], dict):
            name = chance.choice(sorted(known[section]))
            found.setdefault(section, {})[name] = _value(known[section][name], chance)
        else:
            found[section] = _value(known[section], chance)
    return found


def _value(default: Any, chance: Random) -> Any:
    if isinstance(default, bool):
        return chance.random() < 0.5
    if default is None or isinstance(default, str):
        return chance.choice([default or "", "", "x", "kmeans", "vectors", "estimate", "paper", "é", "a\nb"])
    numbers = [default, 0, 1, 2, 7, -1, 1000, 2**62]
    return chance.choice(numbers if isinstance(default, int) else [*numbers, 0.5, 1.5, -0.1, 1e-9, 1e300, float("inf")])


def wrong_type(settings: dict[str, Any], chance: Random) -> dict[str, Any]:
    """Settings with one of another type, or one that there is not."""
    known, section = _written_sections(), chance.choice(sorted(sections()))
    wrong = copy.deepcopy(settings)
    if chance.random() < 0.2:
        wrong[chance.choice(["serach", "Search", "x", "é", "a.b"])] = chance.choice(HOSTILE)  # misspelt
    elif not isinstance(known[section], dict):
        wrong[section] = _other_type(known[section], chance)
    elif chance.random() < 0.2:
        wrong[section] = chance.choice(["x", 1, [], [{}], True])
    else:
        name = chance.choice(sorted(known[section]))
        unknown = chance.random() < 0.2
        own = {name + "x": known[section][name] or 0} if unknown else {name: _other_type(known[section][name], chance)}
        wrong[section] = {**wrong.get(section, {}), **own}
    return wrong


def _other_type(default: Any, chance: Random) -> Any:
    taken = {bool: bool, int: int, float: (int, float), str: str, type(None): str}[type(default)]
    others = [
        value
        for value in HOSTILE
        if not isinstance(value, taken) or (isinstance(value, bool) and not isinstance(default, bool))
    ]
    return chance.choice([*others, float("nan")])


def toml(settings: dict[str, Any]) -> bytes:
    return tomli_w.dumps(settings).encode()


def literal_settings(text: str) -> dict[str, Any]:
    """The settings that a TOML file and its base write, over the defaults."""
    own = tomllib.loads(text)
    base = own.pop("base", None)
    before = literal_settings((CONFIGS / f"{base}.toml").read_text(encoding="utf-8")) if base else sections()
    return merged(before, own)


# Conditions

Test = Callable[[dict[str, Any]], bool | None]
"""Whether a document matches; None where that is unknown."""
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b, "==": lambda a, b: a == b, "<>": lambda a, b: a != b, "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def condition(chance: Random, depth: int = 3) -> tuple[str, Test]:
    """A condition on the columns lang, year, score and flag, and what it says about a document by Python's own rules."""
    how = chance.choice(["single", "and", "or", "not", "()"]) if depth else "single"
    if how == "single":
        return _single(chance)
    text, test = condition(chance, depth - 1)
    if how == "()":
        return f"({text})", test
    if how == "not":
        return f"not ({text})", lambda row: None if test(row) is None else not test(row)
    other_text, other = condition(chance, depth - 1)
    strong = how == "or"  # the value that decides whatever the other says
    return f"({text}) {how} ({other_text})", lambda row: _joint(test(row), other(row), strong)


def _joint(one: bool | None, other: bool | None, strong: bool) -> bool | None:
    if strong in (one, other):
        return strong
    return None if None in (one, other) else not strong


def _single(chance: Random) -> tuple[str, Test]:
    column = chance.choice(["lang", "year", "score", "flag"])
    values = {
        "lang": ["en", "de", "", "o'k", "é"],
        "year": [-3, 0, 1, 2.5, 5],
        "score": [0, 0.5, -1, 1e3],
        "flag": [True, False],
    }[column]
    negated, value = chance.random() < 0.3, chance.choice(values)
    word, kind = "not " * negated, chance.choice(["compare", "compare", "in", "between", "null", "like"])
    if kind == "null":
        return f"{column} is {word}null", lambda row: (row[column] is None) != negated
    if kind == "in":
        some = [chance.choice(values) for _ in range(chance.randrange(1, 4))]
        return f"{column} {word}in ({', '.join(map(_written, some))})", _known(column, negated, lambda own: own in some)
    if kind == "between":
        top = chance.choice(values)
        return f"{column} {word}between {_written(value)} and {_written(top)}", _known(
            column, negated, lambda own: value <= own <= top
        )
    if kind == "like" and column == "lang":
        pattern = "".join(chance.choice("enDE%_'.*") for _ in range(chance.randrange(4)))  # misspelt
        regex = "".join({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in pattern)
        found = re.compile(regex, re.DOTALL | re.IGNORECASE)
        return f"{column} {word}like {_written(pattern)}", _known(
            column, negated, lambda own: bool(found.fullmatch(own))
        )
    sign = chance.choice(sorted(_COMPARE))
    return f"{column} {sign} {_written(value)}", _known(column, False, lambda own: _COMPARE[sign](own, value))


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def _known(column: str, negated: bool, test: Callable[[Any], bool]) -> Test:
    return lambda row: None if row[column] is None else test(row[column]) != negated
