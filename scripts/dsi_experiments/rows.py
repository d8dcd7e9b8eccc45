"""Files of measured rows: a killed command continues with the next row, and a table is made again without training.

OUTPUT/NAME.json is {"rows": [...]}; a record is found by its "row" and "seed". Values per query lie beside it in
OUTPUT/NAME.values.json.gz, so that p-values can be computed again. Both files are replaced in one step after every row. Let one
command at a time write into an OUTPUT: of two, one may lose a row, and measures it again. Knows no collection and no training.
"""

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dsi.docids.files.storage import digest, write_bytes, write_json
from dsi_experiments.published import Measured, experiment_table
from dsi_experiments.report import save_report
from dsi_experiments.tables import REFERENCES, TABLES, t5_of

Values = dict[str, dict[str, float]]
"""{measure: {query_id: value}}."""


class Rows:
    """The rows of one experiment."""

    def __init__(self, path: Path) -> None:
        self.path, self.values_path = path, path.with_suffix(".values.json.gz")

    def records(self) -> list[dict[str, Any]]:
        """All rows, in the order in which they were first measured."""
        return list(self._load(self.path)["rows"]) if self.path.exists() else []

    def find(self, row: str, seed: int, key: str | None = None) -> dict[str, Any] | None:
        """The record of a row under a seed, if there is one (and if it was measured under this key)."""
        found = next((record for record in self.records() if _is(record, row, seed)), None)
        return found if found and key in (None, found.get("key")) else None

    def put(self, record: dict[str, Any], values: Values | None = None) -> None:
        """Add a row, or replace that of the same name and seed.

        Values are written first, so that a record always has its values.
        """
        if values is not None:
            self._put_values(record["row"], record["seed"], values)
        write_json(self.path, {"rows": _replaced(self.records(), record)})

    def values(self, wanted: Iterable[tuple[str, int]] = ()) -> dict[tuple[str, int], Values]:
        """{(row, seed): values per query} of all rows that have them."""
        content, found = self._read_values(), {}
        for own in content["rows"]:
            query_ids = content["queries"][own["queries"]]
            by_query = {name: dict(zip(query_ids, each, strict=True)) for name, each in own["values"].items()}
            found[own["row"], own["seed"]] = by_query
        if without := [row for row, seed in wanted if (row, seed) not in found]:
            raise ValueError(
                f"{self.values_path} has no values of {', '.join(without)}; remove {self.path.name} to measure its rows again."
            )
        return found

    def _put_values(self, row: str, seed: int, values: Values) -> None:
        content, query_ids = self._read_values(), list(next(iter(values.values())))
        content["queries"][digest(query_ids)[:16]] = query_ids
        own = {measure: [by_query[query_id] for query_id in query_ids] for measure, by_query in values.items()}
        record = {"row": row, "seed": seed, "queries": digest(query_ids)[:16], "values": own}
        rows = _replaced(content["rows"], record)
        used = {each["queries"]: content["queries"][each["queries"]] for each in rows}
        text = json.dumps({"queries": used, "rows": rows}, ensure_ascii=False, separators=(",", ":"))
        write_bytes(self.values_path, gzip.compress(text.encode(), mtime=0))

    def _read_values(self) -> dict[str, Any]:
        """{"queries": {name: query_ids}, "rows": [{row, seed, queries, values: {measure: one value a query}}]}."""
        return self._load(self.values_path) if self.values_path.exists() else {"queries": {}, "rows": []}

    def _load(self, path: Path) -> dict[str, Any]:
        content = path.read_bytes()
        found: dict[str, Any] = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        return found


def write_table(output: Path, table: str, seeds: Sequence[int]) -> str:
    """Markdown of all rows of a table that were measured under these seeds; written to OUTPUT/TABLE.md.

    Needs nothing but OUTPUT/TABLE.json and OUTPUT/TABLE.values.json.gz.
    """
    rows = Rows(output / f"{table}.json")
    for path in (rows.path, rows.values_path):
        if not path.exists():
            raise FileNotFoundError(
                f"{path} does not exist; `dsi reproduce {table}` with --data and --config measures it."
            )
    records = {(each["row"], each["seed"]): each for each in rows.records()}
    values = rows.values(key for key in records if key[1] in seeds)
    measured = []
    for row in TABLES[table]:
        keys = [(row.name, seed) for seed in seeds if (row.name, seed) in records]
        if keys:
            measured.append([Measured(row.name, values[key], records[key], row.published, row.stages) for key in keys])
    if not measured:
        raise ValueError(f"{rows.path} has no row that was measured under seed {', '.join(map(str, seeds))}.")
    first = measured[0][0].record
    reason = "not run" if t5_of(first.get("config", {}).get("generator", {})) else "not run: no T5 at hand"
    not_run = [
        (row.name, row.published, reason)
        for row in TABLES[table]
        if row.needs_t5 and row.name not in {name for name, _ in records}
    ]
    text = experiment_table(measured, first["queries"], REFERENCES[table], not_run)
    save_report(output, table, text)
    return text


def _is(record: dict[str, Any], row: str, seed: int) -> bool:
    return bool(record["row"] == row and record["seed"] == seed)


def _replaced(records: list[dict[str, Any]], record: dict[str, Any]) -> list[dict[str, Any]]:
    """The records with one more, in the place of that of the same name and seed."""
    if any(_is(each, record["row"], record["seed"]) for each in records):
        return [record if _is(each, record["row"], record["seed"]) else each for each in records]
    return [*records, record]
