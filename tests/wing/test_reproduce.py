"""`dsi reproduce` on 40 documents with tiny T5 models: every way to answer, shared stages, resuming, tables and figures."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dsi_experiments import dynamic, figure5, objectives_table
from dsi_experiments.laboratory import METHODS, POINTS, Laboratory, one_by_one, weighted_sum
from dsi_experiments.objectives.rows import ROWS
from dsi_experiments.published import Measured, experiment_table
from dsi_experiments.rows import Rows, write_table
from dsi_experiments.tables import REFERENCES, TABLES
from transformers import Trainer

from dsi.commands.main import main
from dsi.config import Config, write_config
from dsi.contrastive.encoder import Encoder
from dsi.docids.clustering import assemble
from dsi.docids.data.collection import read_collection
from dsi.docids.files.processes import Processes
from dsi.docids.schemes import SchemeInput, make_docids
from dsi.docids.tree import DocidTree
from dsi.eval.measures import mean
from dsi.measuring.provenance import provenance
from dsi.search.request import SearchRequest
from dsi.search.results import Trace
from tests.support.small import thin_out
from tests.support.tables import table_rows


@pytest.fixture(autouse=True)
def no_checkpoints(monkeypatch):
    """None of these trainings is killed."""
    monkeypatch.setattr(Trainer, "_save_checkpoint", lambda *_: None)


@pytest.fixture
def config(tmp_path, sentence_t5_folder, t5_folder):
    changes = {
        "encoder": {"name": str(sentence_t5_folder), "document_length": 16},
        "pseudo_queries": {"method": "extractive", "per_document": 2},
        "contrastive": {"loss": "scl", "epochs": 1.0, "batch_size": 16, "temperature": 0.1},
        "docids": {"branching": 4, "max_leaf_size": 4},
        "generator": {"docid_tokens": "digits", "decoder": str(t5_folder)},
        "training": {"epochs": 1.0, "batch_size": 64, "learning_rate": 2e-3},
        "search": {"beam_width": 10, "lexical_weight": 0.0, "token_weight": 0.0},
    }
    write_config(Config().with_changes(changes), tmp_path / "config.toml")
    return tmp_path / "config.toml"


@pytest.fixture
def data(beir):
    return thin_out(beir(), dev=6, test=2)


MADE = {
    "hardware": "a machine",
    "commit": "a77bea0f5930482cca429b9e379b147f86d67b22",
    "seconds": {"in all": 9000, "pseudo_queries": 900.0, "encoder": 1800.0, "docids": 1800.0, "generator": 900.0},
}
"""Where a row comes from: an hour and a half of training, the generator's quarter of an hour in it, and an hour of search."""


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """{row: record} of a file of rows."""
    records = json.loads(path.read_text())["rows"]
    assert len({(record["row"], record["seed"]) for record in records}) == len(records)
    return {record["row"]: record for record in records}


def remove_row(path: Path, name: str) -> None:
    """Take a row out of a file of rows, as if the command had been killed before it."""
    records = json.loads(path.read_text())["rows"]
    path.write_text(json.dumps({"rows": [record for record in records if record["row"] != name]}))


def test_every_row_names_a_method_and_every_table_has_its_reference():
    for table, rows in TABLES.items():
        assert {row.method for row in rows} <= set(METHODS)
        assert len({row.name for row in rows}) == len(rows)
        assert REFERENCES[table] in {row.name for row in rows}
    assert {row.method for rows in TABLES.values() for row in rows} == set(METHODS)
    assert {row.points for rows in TABLES.values() for row in rows} == {"", *POINTS}


def test_rows_of_t5_begin_with_the_one_of_the_decoder_or_are_refused(config, data, t5_folder, tmp_path):
    collection, base = read_collection(data), Config.named(config)
    row = next(row for row in TABLES["table4"] if row.needs_t5)
    dsi = next(row for row in TABLES["table3"] if row.name == "DSI")
    with_t5 = Laboratory(collection, base, tmp_path / "with", "cpu")
    assert {with_t5.config(own, 0).encoder.name for own in (row, dsi)} == {str(t5_folder)}
    for changes in ({"decoder": "", "num_layers": 2}, {"reads": "text", "decoder": "smollm2"}):
        without = Laboratory(collection, base.with_changes({"generator": changes}), tmp_path / "without", "cpu")
        with pytest.raises(ValueError, match=r"No T5 is at hand; name one by --set generator\.decoder=FOLDER"):
            without.config(row, 0)
    fresh = base.with_changes({"generator": {"decoder": "", "num_layers": 2}})
    stand_in = Laboratory(collection, fresh, tmp_path / "without", "cpu").config(dsi, 0)
    assert stand_in.encoder == base.encoder
    rows = Rows(tmp_path / "table4.json")
    for generator, reason in (
        ({"decoder": ""}, "not run: no T5 at hand"),
        ({"decoder": "t5", "reads": "states"}, "not run"),
    ):
        measures = {split: {"Hit@1": 1.0, "Hit@10": 1.0} for split in ("Total", "Overlap", "No Overlap")}
        config = {"generator": generator, "training": {"epochs": 58 / 7}}
        record = {"row": "sentence encoder", "seed": 0, "measures": measures, "config": config, **MADE}
        rows.put({**record, "queries": dict.fromkeys(measures, 1)}, {name: {"q": 1.0} for name in ("Hit@1", "Hit@10")})
        lines = {cells[0]: cells for cells in table_rows(write_table(tmp_path, "table4", [0]))}
        assert lines["T5"][1:3] == ["13.10 / 30.10", reason]
        assert lines["sentence encoder"][-3:] == ["8.29", "1.50", "a77bea0f"]


def test_an_encoder_begins_with_fresh_weights_that_are_always_the_same(config, data, tmp_path):
    row, trained, collection = (
        next(own for own in TABLES["table4"] if own.fresh),
        Config.named(config),
        read_collection(data),
    )
    made = []
    for name in ("one", "other"):
        laboratory = Laboratory(collection, trained, tmp_path / name, "cpu")
        made.append(laboratory.trained_as(row, laboratory.config(row, 0)))
    one, other, own = (Encoder.load(given.encoder, device="cpu").fingerprint for given in (*made, trained))
    assert one == other != own


def test_a_weighted_sum_fills_gaps_with_the_lowest_score():
    first, other = {"q": {"x": 4.0, "y": 2.0}}, {"q": {"y": 1.0, "z": 3.0}, "r": {"z": 1.0}}
    assert weighted_sum(first, [other], [2.0]) == {"q": {"x": 6.0, "y": 4.0, "z": 8.0}, "r": {"z": 2.0}}


def test_a_table_says_what_each_row_cost(tmp_path):
    measures = {split: {"Hit@1": 1.0, "Hit@10": 1.0} for split in ("Total", "Overlap", "No Overlap")}
    for name in ("BM25, title + whole text", "Dense, after contrastive training", "DR-SCL+QG, fused"):
        record = {"row": name, "seed": 0, "measures": measures, "config": {"training": {"epochs": 50.0}}, **MADE}
        values = {measure: {"q": 1.0} for measure in ("Hit@1", "Hit@10")}
        Rows(tmp_path / "table3.json").put({**record, "queries": dict.fromkeys(measures, 1)}, values)
    text = write_table(tmp_path, "table3", [0])
    lines = {cells[0]: cells[-3:] for cells in table_rows(text)}
    assert lines["system"] == ["epochs", "hours", "commit"]
    assert lines["BM25, title + whole text"] == ["", "", "a77bea0f"]
    assert lines["Dense, after contrastive training"] == ["", "1.25", "a77bea0f"]
    assert lines["DR-SCL+QG, fused"] == ["50", "1.50", "a77bea0f"]  # without the hours of tuning and search
    assert "Epochs of the generator, hours of all stages; on a machine." in text


def test_the_seconds_of_a_resumed_training_are_those_of_all_its_processes(config, data, tmp_path):
    laboratory, own = (
        Laboratory(read_collection(data), Config.named(config), tmp_path / "out", "cpu"),
        Config.named("digits"),
    )
    assert laboratory._seconds(own) == {}
    folder = laboratory._folder(own) / "generator"
    folder.mkdir(parents=True)
    (folder / "training.json").write_text('{"loss": 1.0, "steps": 20, "seconds": 50.02}')
    for last, expected in ((20.0, 50.0), (60.0, 60.0)):  # a process that ended what others began; one that was alone
        (folder / "stage.json").write_text(json.dumps({"key": "", "seconds": last, "needs": {}, "files": {}}))
        assert laboratory._seconds(own) == {"generator": expected}


@pytest.mark.slow
def test_table3_shares_stages_resumes_and_writes_everything_down(config, data, t5_folder, tmp_path, capsys):
    output = tmp_path / "out"
    write_config(Config.named(config).with_changes({"docids": {"pieces": 1}}), config)  # as HNSW needs
    common = ["--data", str(data), "--config", str(config), "--output", str(output), "--device", "cpu"]
    chosen = ["BM25, title", "DPR", "RRF", "SCL+QG (beta=0)", "DSI", "SCL+QG, fused", "after search",
              "on top of dense, fused"]  # fmt: skip
    assert main(["reproduce", "table3", *common, "--rows", *chosen]) == 0
    printed = capsys.readouterr().out
    table = (output / "table3.md").read_text()
    assert table.strip() in printed
    lines = {cells[0]: cells for cells in table_rows(table)[2:]}
    assert list(lines) == [row.name for row in TABLES["table3"] if any(text in row.name for text in chosen)]
    assert lines["DR-SCL+QG, fused"][1] == "61.70 / 79.80"  # published beside ours
    assert lines["DSI+QG"][1] == "56.35 / 73.90"
    assert "paired randomisation test against “RRF of BM25 and dense”" in table

    # What rows have in common was trained once: fused rows and the decoder-only row are one generator.
    records = read_rows(output / "table3.json")
    assert set(records) == set(lines)
    assert len(records) == 12
    assert {records[name]["config"]["encoder"]["name"] for name in ("DSI", "DSI+QG")} == {str(t5_folder)}
    assert records["DR-SCL+QG, fused, alpha 0.7"]["settings"] == {"alpha": 0.7, "beta": "inf"}
    assert records["DR-SCL+QG, fused"]["config"] == records["DR-SCL+QG (beta=0)"]["config"]
    generators = list((output / "store" / "generator").glob("[!.]*"))
    assert len(generators) == 4  # QG; DSI; DSI+QG; on top of dense
    embeddings = list(output.glob("**/states/*/documents-*"))
    assert len(embeddings) == 3  # one an encoder: untrained (for DSI's docids), DPR, SCL
    record = records["DR-SCL+QG, fused"]
    assert set(record["measures"]) == set(record["queries"]) == {"Total", "Overlap", "No Overlap"}
    assert {"commit", "versions", "hardware", "seconds", "settings", "seed", "config", "collection"} <= set(record)
    assert record["seconds"]["generator"] > 0
    assert records["DSI"]["config"]["training"]["epochs"] == records["DSI+QG"]["config"]["training"]["epochs"]

    # The two committed files are all that the table needs.
    for name in ("table3.json", "table3.values.json.gz"):
        (tmp_path / "kept" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "kept" / name).write_bytes((output / name).read_bytes())
    assert main(["reproduce", "table3", "--output", str(tmp_path / "kept"), "--report-only"]) == 0
    assert (tmp_path / "kept" / "table3.md").read_text() == table
    assert capsys.readouterr().out.strip() == table.strip()
    (tmp_path / "kept" / "table3.values.json.gz").unlink()
    assert main(["reproduce", "table3", "--output", str(tmp_path / "kept"), "--report-only"]) == 2
    assert "table3.values.json.gz does not exist; `dsi reproduce table3` with --data" in capsys.readouterr().err

    # Done rows stay; a row whose record is gone is measured again without training.
    trained = {path: path.stat().st_mtime_ns for path in generators}
    values = (output / "table3.values.json.gz").read_bytes()
    remove_row(output / "table3.json", "DSI+QG")
    assert main(["reproduce", "table3", *common, "--rows", "DSI+QG", "HNSW"]) == 0
    again = capsys.readouterr().out
    assert "seed 0: DSI+QG" in again
    assert "seed 0: DPR, HNSW" not in again
    measured_again = read_rows(output / "table3.json")
    assert measured_again["DSI+QG"]["measures"] == records["DSI+QG"]["measures"]
    assert {name: own for name, own in measured_again.items() if name != "DSI+QG"} == {
        name: own for name, own in records.items() if name != "DSI+QG"
    }
    assert (output / "table3.values.json.gz").read_bytes() == values
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    assert main(["reproduce", "table3", *common, "--rows", "HNSW", "nonsense"]) == 2
    assert "No row's name contains ['nonsense']; the rows are: BM25" in capsys.readouterr().err


def test_rows_are_kept_by_name_and_seed_with_values_in_the_same_bytes_every_time(tmp_path):
    values = {"Hit@1": {"q2": 1.0, "q1": 0.0}, "nDCG@10": {"q2": 1.0, "q1": 0.63}}
    rows = Rows(tmp_path / "a" / "table3.json")
    assert rows.records() == []
    assert rows.values() == {}
    rows.put({"row": "BM25", "seed": 0, "key": "x", "share": 0.5}, values)
    rows.put({"row": "dense", "seed": 0, "key": "y"}, {"Hit@1": {"other": 0.0}})  # of other queries
    rows.put({"row": "BM25", "seed": 1, "key": "x"}, values)
    rows.put({"row": "BM25", "seed": 0, "key": "z", "share": 0.7}, values)  # measured again: in its old place
    assert [(record["row"], record["seed"], record["key"]) for record in Rows(rows.path).records()] == [
        ("BM25", 0, "z"), ("dense", 0, "y"), ("BM25", 1, "x")
    ]  # fmt: skip
    assert rows.find("BM25", 0, "x") is None
    assert rows.find("BM25", 0, "z") == rows.find("BM25", 0) == {"row": "BM25", "seed": 0, "key": "z", "share": 0.7}
    assert rows.find("BM25", 2) is None
    found = rows.values()
    assert found == {("BM25", 0): values, ("dense", 0): {"Hit@1": {"other": 0.0}}, ("BM25", 1): values}
    assert list(found["BM25", 0]["Hit@1"]) == ["q2", "q1"]
    content = json.loads(gzip.decompress(rows.values_path.read_bytes()))
    assert sorted(content["queries"].values()) == [["other"], ["q2", "q1"]]
    assert [own["values"] for own in content["rows"][:1]] == [{"Hit@1": [1.0, 0.0], "nDCG@10": [1.0, 0.63]}]
    assert rows.values_path.read_bytes()[4:8] == bytes(4)  # no time in the file: the same rows are the same bytes
    assert {path.name for path in rows.path.parent.iterdir()} == {"table3.json", "table3.values.json.gz"}


def test_rows_whose_values_were_lost_are_named(tmp_path):
    rows = Rows(tmp_path / "tied.json")
    rows.put({"row": "kmeans", "seed": 0}, {"Hit@1": {"q": 1.0}})
    rows.put({"row": "rq", "seed": 0}, {"Hit@1": {"q": 0.0}})
    rows.values_path.unlink()
    rows.put({"row": "pq", "seed": 0}, {"Hit@1": {"q": 0.0}})
    message = "tied.values.json.gz has no values of kmeans, rq; remove tied.json to measure its rows again"
    with pytest.raises(ValueError, match=message):
        rows.values([("kmeans", 0), ("rq", 0), ("pq", 0)])
    assert list(rows.values()) == [("pq", 0)]


def test_rows_that_a_collection_does_not_allow_are_named_and_the_others_measured(config, data, tmp_path, capsys):
    (data / "qrels" / "train.tsv").unlink()
    common = ["--data", str(data), "--config", str(config), "--output", str(tmp_path / "out"), "--device", "cpu"]
    assert main(["reproduce", "table3", *common, "--rows", "+ BM25", "Dense, before", "whole text"]) == 2
    printed = capsys.readouterr()
    names = ["BM25, title + whole text", "Dense, before contrastive training"]
    assert [cells[0] for cells in table_rows(printed.out)[2:]] == names
    assert "dsi: 1 of 3 rows could not be measured. Dense + BM25: There are no queries" in printed.err
    common += ["--output", str(tmp_path / "none")]
    assert main(["reproduce", "table3", *common, "--rows", "dense, fused"]) == 2
    assert "1 of 1 rows could not be measured" in capsys.readouterr().err
    (data / "qrels" / "test.tsv").unlink()
    assert main(["reproduce", "figure5", *common]) == 2
    assert "has no queries to measure on; add qrels/test.tsv" in capsys.readouterr().err


@pytest.mark.slow
def test_systems_of_other_papers_are_rows_of_one_table(config, data, tmp_path):
    output = tmp_path / "out"
    common = ["--data", str(data), "--config", str(config), "--output", str(output), "--device", "cpu"]
    chosen = ["dense + BM25", "DSI", "NCI", "GENRE", "RIPOR", "LTRGR"]
    assert main(["reproduce", "papers", *common, "--rows", *chosen]) == 0
    records = read_rows(output / "papers.json")
    names = [row.name for row in TABLES["papers"] if any(text in row.name for text in chosen)]
    assert list(records) == names == [cells[0] for cells in table_rows((output / "papers.md").read_text())[2:]]
    assert len(names) == 10
    assert records["RIPOR"]["config"]["training"]["objective"] == "ripor"
    assert records["DSI, semantic docids"]["config"]["training"]["train_encoder"]
    depths = {DocidTree.load(path).depth for path in (output / "runs").glob("*/docids/docids.safetensors")}
    assert min(depths) == 1 < max(depths)  # atomic docids: every document is a child of the root


@pytest.mark.programs
@pytest.mark.parametrize("points", list(POINTS))
def test_docids_of_other_points_are_read_from_a_file_as_they_were_clustered(points, config, data, tmp_path):
    laboratory = Laboratory(read_collection(data), Config.named(config), tmp_path / "out", "cpu")
    own = laboratory.base.with_changes({"contrastive": {"learning_rate": 1e-2}, "docids": {"pieces": 1}})
    (_, vectors), tree = POINTS[points](laboratory, own), laboratory.tree(own)
    clustered = assemble(make_docids(SchemeInput(vectors, own.docids)), tree.embeddings[tree.positions])
    read = laboratory.clustered_on(points, own)
    (path,) = (tmp_path / "out" / "docids").iterdir()
    assert read.docids.method == str(path)
    assert len(path.read_text().splitlines()) == 40
    found = laboratory.tree(read)
    assert found.fingerprint == clustered.fingerprint != tree.fingerprint  # the same paths to the same documents
    assert found.paths(found.positions)[1].tolist() == clustered.paths(clustered.positions)[1].tolist()
    np.testing.assert_array_equal(found.embeddings[:], tree.embeddings[tree.positions][found.doc_rows])
    written = path.stat().st_mtime_ns, path.read_bytes()
    assert laboratory.clustered_on(points, own) == read
    assert (path.stat().st_mtime_ns, path.read_bytes()) == written
    path.unlink()
    assert laboratory.clustered_on(points, own) == read
    assert path.read_bytes() == written[1]


@pytest.mark.programs
def test_points_of_other_docids(config, data, tmp_path):
    collection = read_collection(data)
    laboratory = Laboratory(collection, Config.named(config), tmp_path / "out", "cpu")
    whole = laboratory.base.with_changes({"docids": {"pieces": 1}})
    encoder, means = laboratory.query_means(whole)
    texts = [[text] for text in encoder.document_texts(collection.documents["title"], collection.documents["text"])]
    own = [encoder.encode(one, "document") for one in texts]
    rows, pseudo = laboratory._training(whole).pseudo_queries()
    asked = [(row, collection.queries[query_id]) for query_id, row in collection.pairs("train")]
    for row, text in [*asked, *zip(rows, pseudo, strict=True)]:
        own[row] = np.concatenate([own[row], encoder.encode(encoder.query_texts([text]), "query")])
    np.testing.assert_allclose(means, [vectors.mean(axis=0) for vectors in own], atol=1e-5)
    np.testing.assert_array_equal(laboratory.query_means(laboratory.base)[1], means)  # 0 is 1 here
    assert laboratory.base.docids.pieces == 0
    by_means = laboratory.clustered_on("query-means", laboratory.base)
    assert by_means == laboratory.clustered_on("query-means", whole)
    assert by_means.docids.pieces == 1
    before, untrained = laboratory.untrained(whole)
    texts = before.document_texts(collection.documents["title"], collection.documents["text"])
    np.testing.assert_allclose(untrained, before.encode(texts, "document"), atol=1e-5)
    pieces = laboratory.base.with_changes({"docids": {"pieces": 2}})
    with pytest.raises(ValueError, match=r"docids.pieces must be 1 to cluster means with queries, .*, got 2; set it"):
        laboratory.query_means(pieces)
    read = laboratory.clustered_on("untrained", pieces)
    assert laboratory.tree(read).pieces == 2  # a line a piece, in order


@pytest.mark.slow
def test_documents_below_the_beam_are_ranked_by_dense_scores(config, data, tmp_path):
    collection = read_collection(data)
    whole = Config.named(config).with_changes({"docids": {"pieces": 1}})  # a beam may reach some pieces of a document
    laboratory = Laboratory(collection, whole, tmp_path / "out", "cpu")
    run, options = METHODS["clusters-10"](laboratory, laboratory.base)
    index = laboratory.index(laboratory.base)
    tree, doc_ids = index.retriever.snapshot.tree, list(index.retriever.snapshot.documents.rows)
    snapshot, encoded = index.retriever.snapshot, index.encode("test", collection.query_texts("test"))
    request = SearchRequest(10, dataclasses.replace(snapshot.search_config, **options))
    dense, reached = index.run_dense("test"), 0
    assert options["beam_width"] == 10
    assert run.keys() == collection.query_texts("test").keys()
    for row, batch in one_by_one(encoded):
        query_id, trace = encoded.query_ids[row], Trace()
        snapshot.engine.methods["generate"].retrieve(batch, request, trace)
        below = {int(node) for level in trace.levels for node in level.nodes[0] if node >= tree.num_inner}
        assert set(run[query_id]) == {doc_ids[tree.doc_rows[node - tree.num_inner]] for node in below}
        assert run[query_id] == pytest.approx({doc_id: dense[query_id][doc_id] for doc_id in run[query_id]}, abs=1e-4)
        reached += len(below) < tree.num_places
    assert reached  # some documents are below no node of the beam


@pytest.mark.slow
def test_tables_4_and_5_over_two_seeds_and_the_figure(config, data, t5_folder, tmp_path, capsys, monkeypatch):
    output, drawn, draw, alphas = tmp_path / "out", [], figure5.grid_figure, (0.0, 0.3, 0.7, 1.0)
    monkeypatch.setattr(figure5, "ALPHAS", alphas)
    monkeypatch.setattr(figure5, "grid_figure", lambda values, *_: drawn.append(values))
    common = ["--data", str(data), "--config", str(config), "--output", str(output), "--device", "cpu"]
    assert main(["reproduce", "table4", *common, "--rows", "random weights", "sentence encoder"]) == 0
    lines = {cells[0]: cells for cells in table_rows(capsys.readouterr().out)}
    assert lines["T5"][1:3] == ["13.10 / 30.10", "not run"]
    assert lines["no pre-training (random weights)"][1] == ""  # which the paper does not have
    fresh, own = (row["config"]["encoder"]["name"] for row in read_rows(output / "table4.json").values())
    assert fresh == f"fresh:{own}"
    assert main(["reproduce", "table4", *common, "--rows", "T5"]) == 0
    assert "not run" not in capsys.readouterr().out
    assert read_rows(output / "table4.json")["T5"]["config"]["encoder"]["name"] == str(t5_folder)
    assert main(["reproduce", "table4", *common, "--rows", "loss"]) == 0
    assert main(["reproduce", "table3", *common, "--rows", "query means"]) == 0
    assert "seed 0: DR-SCL+QG, docids of query means (beta=0)" in capsys.readouterr().out
    assert main(["reproduce", "table3", *common, "--rows", "query means"]) == 0
    assert "seed 0: " not in capsys.readouterr().out
    assert main(["reproduce", "table5", *common, "--seeds", "0", "1"]) == 0
    files = sorted(path.name.split("-")[0] for path in (output / "docids").iterdir())
    assert files == ["query", *["untrained"] * 3]  # of table 3; of DPR and SCL, and of SCL with seed 1
    rows = [row for table in ("table3", "table4", "table5") for row in Rows(output / f"{table}.json").records()]
    assert {row["config"]["docids"]["method"] for row in rows} == {"kmeans"}  # no path of the machine
    table = capsys.readouterr().out
    assert "±" in table
    assert "over 2 seeds" in table
    assert main(["reproduce", "figure5", *common]) == 0
    found = [row["found"] for row in read_rows(output / "figure5.json").values() if "Hit@1" in row["found"]]
    assert len(found) == 1 + 4 * len(alphas)  # beta = 0 is the decoder alone, whatever alpha
    grid = {cells[0]: cells[1:] for cells in table_rows((output / "figure5.md").read_text())[2:]}
    assert list(grid) == ["0", "1", "2", "3", "inf"]
    assert grid["0"] == len(alphas) * grid["0"][:1]
    by_alpha = {cell["alpha"]: f"{cell['Hit@1']:.2f}" for cell in found if cell["beta"] == "inf"}
    assert grid["inf"] == [by_alpha[alpha] for alpha in alphas]
    before, report = read_rows(output / "figure5.json"), (output / "figure5.md").read_text()
    remove_row(output / "figure5.json", "alpha 0.3, beta 2")  # as if it had been killed: the other cells stay
    assert main(["reproduce", "figure5", "--output", str(output), "--report-only"]) == 2
    assert "figure5.json lacks 1 cells of seed 0" in capsys.readouterr().err
    assert main(["reproduce", "figure5", *common]) == 0
    assert capsys.readouterr().out.count("figure5: ") == 1
    assert read_rows(output / "figure5.json") == before
    assert [len(values) for values in drawn] == [5 * len(alphas)] * 2
    assert drawn[0] == drawn[1]
    (output / "figure5.md").unlink()
    monkeypatch.setattr(figure5, "grid_figure", draw)
    assert main(["reproduce", "figure5", "--output", str(output), "--report-only"]) == 0
    assert (output / "figure5.md").read_text() == report
    assert (output / "figure5.svg").read_text().startswith("<?xml")


@pytest.mark.slow
def test_objectives_train_on_one_budget_and_are_searched_by_beam(config, data, tmp_path, capsys, monkeypatch):
    assert {*objectives_table.NAMES, "ripor", "ltrgr"} == set(ROWS)  # these have tables of their own
    names = ("ce", "tdm", "dtr")
    monkeypatch.setattr(objectives_table, "NAMES", names)
    output = tmp_path / "out"
    common = ["--data", str(data), "--config", str(config), "--output", str(output), "--device", "cpu"]
    assert main(["reproduce", "objectives", *common]) == 0
    heads = ["decoder alone, Hit@1", *(f"beam {beam}" for beam in (1, 2, 5, 10, 20, 50))]
    assert heads in table_rows(capsys.readouterr().out)
    found = {name: row["found"] for name, row in read_rows(output / "objectives.json").items()}
    assert list(found) == [*names, "ce, on as few examples as tdm"]
    control = found["ce, on as few examples as tdm"]
    assert (control["epochs"], control["batch"], control["steps"]) == tuple(
        found["tdm"][k] for k in ("epochs", "batch", "steps")
    )
    budgets = [found[name]["positions an example"] * found[name]["epochs"] for name in names]
    assert max(budgets) < 1.02 * min(budgets)
    assert found["dtr"]["positions an example"] > 3 * found["ce"]["positions an example"]
    for name, record in found.items():
        cells = {(cell["system"], cell["beam"]): cell for cell in record["cells"]}
        assert len(cells) == 12, name
        assert all(0 <= cell["Hit@1"] <= cell["Hit@10"] <= 100 for cell in cells.values())
        assert cells["decoder alone", 50]["search errors"] == 0  # the whole tree
        assert cells["decoder alone", 1]["search errors"] >= 0
    before = (output / "objectives.md").read_text()
    capsys.readouterr()
    assert main(["reproduce", "objectives", *common]) == 0
    assert "objectives: " not in capsys.readouterr().out  # nothing is measured twice
    assert (output / "objectives.md").read_text() == before
    (output / "objectives.md").unlink()
    assert main(["reproduce", "objectives", "--output", str(output), "--report-only"]) == 0
    assert (output / "objectives.md").read_text() == before
    assert main(["reproduce", "updates", "--output", str(output), "--report-only"]) == 2
    assert "--report-only makes tables and dynamic, figure5, objectives again, not updates" in capsys.readouterr().err


def test_of_several_processes_the_first_alone_writes_rows(config, data, tmp_path, monkeypatch):
    common = ["--data", str(data), "--config", str(config), "--device", "cpu", "--rows", "BM25, title + whole"]
    for rank in (1, 0):
        processes = Processes(rank, 2, lambda own: [own, own])
        monkeypatch.setattr("dsi_experiments.laboratory.launch", lambda _, processes=processes: processes)
        assert main(["reproduce", "table3", *common, "--output", str(tmp_path / f"out-{rank}")]) == 0
        assert (tmp_path / f"out-{rank}" / "table3.json").exists() == (rank == 0)
        assert (tmp_path / f"out-{rank}" / "table3.values.json.gz").exists() == (rank == 0)


@pytest.mark.slow
def test_documents_added_to_an_index_are_found_beside_a_full_training(config, data, tmp_path, capsys):
    output = tmp_path / "out"
    common = ["--data", str(data), "--config", str(config), "--output", str(output), "--device", "cpu"]
    assert main(["reproduce", "updates", *common]) == 0
    table = capsys.readouterr().out
    assert "4 of 40 documents added" in table
    found = json.loads((output / "updates.json").read_text())
    (part,) = output.glob("without-*")
    assert len((part / "corpus.jsonl").read_text().splitlines()) == 36
    assert found["before adding"]["of added documents"] == {"Hit@1": 0.0, "Hit@10": 0.0}
    assert found["after adding"]["of added documents"]["Hit@10"] > 0  # at once
    assert found["after adding"]["of others"]["Hit@10"] > 25  # of a decoder of one epoch
    assert sum(found["queries"].values()) == 66


def test_generalisation_and_forgetting_of_a_hand_made_matrix():
    # Trained on D0. D1 and D2 are found by 60 and 40 % when they come; in the end D0 has lost 15 points and D1 gained 5.
    found = dynamic.summarise([[80.0], [70.0, 60.0], [65.0, 65.0, 40.0]])
    assert found["GA"] == (60 + 40) / 2
    assert found["F"] == ((80 - 65) + (60 - 65)) / 2
    assert found["F0"] == 80 - 65
    assert found["gap"] == (65 + 40) / 2 - 65


def test_every_document_and_every_query_is_in_one_part():
    parts = dynamic.split_documents(1003, 0)
    assert [len(part) for part in parts] == [502, 100, 100, 100, 101, 100]
    assert sorted(row for part in parts for row in part) == list(range(1003))
    assert parts == dynamic.split_documents(1003, 0) != dynamic.split_documents(1003, 1)
    qrels = {"q1": {"a": 1}, "q2": {"a": 2, "c": 1, "b": 1}, "q3": {"b": 1, "c": 0}, "q4": {"c": 0}}
    assert dynamic.queries_of_parts(qrels, [{"a"}, {"b"}, {"c"}]) == [["q1"], ["q3"], ["q2"]]
    with pytest.raises(ValueError, match="No test query asks for a document of D1; give a larger collection"):
        dynamic.queries_of_parts(qrels, [{"a"}, {"d"}, {"b", "c"}])


@pytest.mark.slow
def test_a_collection_grows_step_by_step(config, data, tmp_path, capsys, monkeypatch):
    output = tmp_path / "out"
    common = ["--data", str(data), "--config", str(config), "--output", str(output), "--device", "cpu"]
    longer = ("trained longer", {"training": {"epochs": 2.0}})
    monkeypatch.setattr(dynamic, "ROWS", (*dynamic.ROWS[:1], longer))
    assert main(["reproduce", "dynamic", *common]) == 0
    printed = capsys.readouterr().out
    (d0,) = output.glob("d0-*")
    rows = read_rows(output / "dynamic.json")
    first = dynamic.ROWS[0][0]
    assert {name: list(row["found"]["systems"]) for name, row in rows.items()} == {
        first: [*dynamic.BASELINES, *dynamic.GENERATIVE], "trained longer": list(dynamic.GENERATIVE)
    }  # fmt: skip
    assert len(list((output / "store" / "encoder").glob("[!.]*"))) == 1  # the rows share it
    assert len(list((output / "store" / "generator").glob("[!.]*"))) == 1  # the first row has none

    # Only documents and queries of the first part are there to be trained on.
    doc_ids = {json.loads(line)["_id"] for line in (d0 / "corpus.jsonl").read_text().splitlines()}
    assert len(doc_ids) == 20
    for split in ("train", "dev", "test"):
        assert {line.split("\t")[1] for line in (d0 / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]} <= doc_ids
    found = rows[first]["found"]
    assert [part["documents"] for part in found["parts"]] == [20, 4, 4, 4, 4, 4]
    assert sum(part["queries"] for part in found["parts"]) == 66

    # The values per query are what the matrix is the mean of, and a document is found only once it is there.
    values = Rows(output / "dynamic.json").values()[first, 0]
    for name, system in found["systems"].items():
        matrix = system["Hit@10"]["matrix"]
        assert [len(row) for row in matrix] == [1, 2, 3, 4, 5, 6]
        steps = [sum(values[f"{name}, Hit@10, step {step}"].values()) for step in range(6)]
        of_parts = zip(found["parts"], matrix[5], strict=True)
        assert steps[5] == pytest.approx(sum(part["queries"] * value / 100 for part, value in of_parts), abs=0.1)
        assert steps[0] == pytest.approx(found["parts"][0]["queries"] * matrix[0][0] / 100, abs=0.1)
        assert system["Hit@10"]["GA"] == pytest.approx(mean({n: row[-1] for n, row in enumerate(matrix[1:])}), abs=0.02)
    assert found["systems"]["dense"]["Hit@10"]["GA"] > 40  # by an encoder of two random layers
    assert found["systems"]["BM25"]["Hit@1"]["GA"] > 50

    # A line a system, then a table a system with a line a step.
    table = (output / "dynamic.md").read_text()
    assert table.strip() in printed
    lines = [cells for cells in table_rows(table) if not set(cells[0]) <= {"-"}]
    own = [f"{name}, {row}" for row in (first, "trained longer") for name in dynamic.GENERATIVE]
    assert [cells[0] for cells in lines[:8]] == ["system", *dynamic.BASELINES, *own]
    assert [cells[0] for cells in lines[8:15]] == ["BM25", "D0", *(f"D{step} added" for step in range(1, 6))]
    assert len(lines) == 8 + 7 * 7

    # As if it had been killed: the other row stays, nothing is trained again.
    before = read_rows(output / "dynamic.json")
    remove_row(output / "dynamic.json", "trained longer")
    assert main(["reproduce", "dynamic", *common]) == 0
    assert capsys.readouterr().out.count("dynamic: ") == 1
    after = read_rows(output / "dynamic.json")
    assert after[first] == before[first]
    assert after["trained longer"]["found"]["systems"] == before["trained longer"]["found"]["systems"]
    (output / "dynamic.md").unlink()
    assert main(["reproduce", "dynamic", "--output", str(output), "--report-only"]) == 0
    assert len(table_rows((output / "dynamic.md").read_text())) == len(table_rows(table))
    assert main(["reproduce", "dynamic", "--output", str(output), "--seeds", "7", "--report-only"]) == 2
    assert "has no rows of seed 7; `dsi reproduce dynamic` measures them" in capsys.readouterr().err


def test_a_table_shows_means_deviations_and_significance():
    queries = [f"q{n}" for n in range(40)]

    def row(name: str, hits: int, seed: int) -> Measured:
        values = {query: float(n < hits + seed) for n, query in enumerate(queries)}
        share = 100 * float(np.mean(list(values.values())))
        measures = {split: {"Hit@1": share, "Hit@10": share} for split in ("Total", "Overlap")}
        measures["No Overlap"] = {"Hit@1": float("nan"), "Hit@10": float("nan")}
        return Measured(name, {"Hit@1": values, "Hit@10": values}, {"measures": measures}, "DPR")

    rows = [[row("weak", 10, 0), row("weak", 10, 2)], [row("strong", 30, 0), row("strong", 30, 2)]]
    lines = experiment_table(rows, {"Total": 40, "Overlap": 40, "No Overlap": 0}, "strong").splitlines()
    _, _, weak, strong = table_rows("\n".join(lines))
    share = "27.50 ± 3.54 / 27.50 ± 3.54"
    assert weak == ["weak", "61.25 / 83.80", share, share, "— / —", "0.0001", "0.0001"]
    assert strong[-2:] == ["", ""]
    assert lines[-1].startswith("Hit@1 / Hit@10 in percent, mean ± standard deviation over 2 seeds")
    assert lines[-1].endswith("Overlap is 100.00 % of the queries, 20.65 % in the paper's NQ10k.")


def test_published_numbers_are_those_of_the_same_collection():
    values = {name: {"q": 1.0} for name in ("Hit@1", "Hit@10")}
    measures = {split: {"Hit@1": 100.0, "Hit@10": 100.0} for split in ("Total", "Overlap", "No Overlap")}
    sizes = {"Total": 4, "Overlap": 1, "No Overlap": 3}
    for name, published, share in (("nq100k", "53.84 / 79.18", "60.89"), ("nq10k", "61.25 / 83.80", "20.65")):
        record = {"measures": measures, "collection": {"name": name}}
        table = experiment_table([[Measured("DPR", values, record, "DPR")]], sizes, "DPR")
        assert [cells[1] for cells in table_rows(table)][2:] == [published]
        assert f"Overlap is 25.00 % of the queries, {share} % in the paper's {name.replace('nq', 'NQ')}." in table


def test_pictures_without_matplotlib_name_the_extra(monkeypatch, tmp_path):
    from dsi_experiments.figures import grid_figure

    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "dr-scl-experiments\[figures\]"'):
        grid_figure({(0.0, 0.0): 1.0}, "alpha", "beta", "", Path(tmp_path / "x"))


def test_the_hardware_of_a_result_says_what_its_speed_depends_on(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False}, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: ["H200", "A100", "H200"][i])
    hardware = provenance()["hardware"]
    assert hardware.endswith(f" without bfloat16, {torch.get_num_threads()} threads, 1 x A100, 2 x H200")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    assert " with bfloat16, " in provenance()["hardware"]
