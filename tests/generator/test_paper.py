"""The paper's system from texts to answers: `paper-minilm` trained on a tiny collection, its answers against eq. 9 to 12."""

import dataclasses
import json

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.config import Config, run_config, write_config
from dsi.contrastive.blocks import DocumentTexts
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.training.pipeline import TrainingRun
from dsi.training.stages import needed_stages
from tests.support.half import HALVES, save_encoder_in, save_t5_in, stored_types
from tests.support.oracles import document_log_p
from tests.support.paths import path_scores
from tests.support.small import as_batch, thin_out, write_collection


@pytest.fixture(scope="module")
def trained(tmp_path_factory, sentence_bert_folder):
    folder = tmp_path_factory.mktemp("paper")
    data = thin_out(write_collection(folder / "collection"), test=2)
    config = Config.named("paper-minilm").with_changes(
        {
            "dev_queries": 0, "encoder": {"name": str(sentence_bert_folder)}, "pseudo_queries": {"per_document": 1},
            "contrastive": {"epochs": 1.0}, "training": {"epochs": 2.0},
        }
    )  # fmt: skip
    collection = dsi.read_collection(data)
    return collection, dsi.train(collection, folder / "run", config=config, device="cpu"), folder


def test_the_small_system_is_the_papers_but_for_its_models():
    paper, small = (dataclasses.asdict(Config.named(name)) for name in ("paper", "paper-minilm"))
    assert paper["dev_queries"] == 0
    assert (paper["docids"]["method"], paper["docids"]["branching"]) == ("kmeans", 10)
    assert (paper["generator"]["docid_tokens"], paper["training"]["objective"]) == ("digits", "ce")
    assert {name: paper["search"][name] for name in ("alpha", "beta")} == {
        "alpha": 0.7, "beta": float("inf")
    }  # fmt: skip
    assert (paper["encoder"]["query_prompt"], paper["encoder"]["document_prompt"]) == ("Query: ", "Document: ")
    differ = {(section, key) for section, own in paper.items() if isinstance(own, dict) for key in own
              if own[key] != small[section][key]}  # fmt: skip
    assert differ == {
        ("pseudo_queries", "method"), ("pseudo_queries", "per_document"), ("encoder", "name"), ("contrastive", "epochs"),
        ("generator", "decoder"), ("generator", "num_layers"), ("training", "epochs"), ("training", "learning_rate"),
    }  # fmt: skip


def test_the_encoder_is_trained_on_all_documents_and_all_queries(trained):
    collection, _, folder = trained
    run = TrainingRun(folder / "run", collection, run_config(folder / "run"), device="cpu")
    rows, texts = run._contrastive_rows(run.encoder()), list(collection.query_texts("train").values())
    expected = run.encoder().query_texts([*texts, *run.pseudo_queries()[1]])
    assert sorted(rows["view_1"]) == sorted(expected)
    assert set(rows["view_2"]) == set(
        DocumentTexts(run.encoder(), collection.documents)[:]
    )  # those without a query too
    assert needed_stages("encoder", run.config) == ["pseudo_queries"]
    pairs = run.config.with_changes({"contrastive": {"texts": "pairs"}})
    assert needed_stages("encoder", pairs) == []


def test_vectors_are_means_of_states_and_the_decoder_is_fresh(trained):
    _, retriever, _ = trained
    encoder = Encoder.load(EncoderConfig(), retriever.snapshot.encoder.folder, "cpu")
    assert [type(module).__name__ for module in encoder.model] == [
        "Transformer",
        "Pooling",
    ]  # neither head nor length 1
    assert encoder.model.similarity_fn_name == "dot"
    assert retriever.snapshot.encoder.embedding_dim == retriever.snapshot.generator.config.d_model
    assert len(retriever.snapshot.generator.decoder.block) == 2


@pytest.mark.parametrize(("alpha", "beta"), [(0.7, np.inf), (0.7, 1.0), (0.3, np.inf), (0.0, np.inf), (0.7, 0.0)])
def test_answers_are_those_of_equations_9_to_12(trained, alpha, beta):
    collection, retriever, _ = trained
    config = dataclasses.replace(retriever.search_config, alpha=alpha, beta=beta)
    retriever.search_config, before = config, retriever.search_config
    texts = list(collection.query_texts("test").values())[:6]
    states, mask, embeddings, _ = retriever.snapshot.encoder.forward(
        retriever.snapshot.encoder.query_texts(texts), "query"
    )
    batch = as_batch(states, mask, embeddings, texts)
    tree = retriever.snapshot.tree
    scores = path_scores(tree, retriever.snapshot.generator, batch, config)
    if beta == 0:
        np.testing.assert_allclose(scores, document_log_p(tree, retriever.snapshot.generator, states, mask), atol=1e-4)
    doc_ids = list(retriever.snapshot.documents.rows)
    for method, options in (("generate", {"beam_width": 40}), ("generate", {}), ("exact", {})):
        for row, hits in enumerate(retriever.search(texts, k=5, method=method, **options)):
            own = {doc_ids[tree.doc_rows[position]]: score for position, score in enumerate(scores[row])}
            assert [hit.score for hit in hits] == pytest.approx([own[hit.doc_id] for hit in hits], rel=1e-4, abs=1e-3)
            if hits.exact:
                best = sorted(own.values(), reverse=True)[:5]
                assert [hit.score for hit in hits] == pytest.approx(best, rel=1e-4, abs=1e-3)
            assert hits.exact or not (options or method == "exact")  # nothing is pruned
    retriever.search_config = before


def test_the_index_is_evaluated_and_searched_as_a_command(trained, capsys):
    collection, retriever, folder = trained
    evaluation = dsi.evaluate(retriever, collection)
    names = [row.name for row in evaluation.rows]
    assert {"BM25", "dense", "decoder only", "generate", "exact"} <= set(names)
    assert evaluation.index == "generate"
    for method in ("generate", "exact"):
        query = next(iter(collection.query_texts("test").values()))
        assert main(["search", str(folder / "run"), query, "--method", method, "--device", "cpu"]) == 0
        printed = capsys.readouterr().out
        assert retriever.search(query, method=method)[0].doc_id in printed


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_system_trains_from_models_in_half_precision(dtype, sentence_t5_folder, t5_folder, tmp_path):
    encoder = save_encoder_in(dtype, sentence_t5_folder, tmp_path / "encoder")
    t5 = save_t5_in(dtype, t5_folder, tmp_path / "t5")
    config = Config.named("paper").with_changes(
        {
            "encoder": {"name": str(encoder)}, "generator": {"decoder": str(t5)},
            "pseudo_queries": {"method": str(t5), "per_document": 1},
            "contrastive": {"epochs": 1.0}, "training": {"epochs": 1.0},
        }
    )  # fmt: skip
    write_config(config, tmp_path / "paper.toml")
    data = thin_out(write_collection(tmp_path / "collection"), train=3, test=4)
    common = ["--config", str(tmp_path / "paper.toml"), "--device", "cpu"]
    assert main(["train", str(data), str(tmp_path / "run"), *common]) == 0
    retriever = dsi.load(tmp_path / "run", device="cpu")
    assert stored_types(tmp_path / "run" / "encoder") == {dtype}
    evaluation = dsi.evaluate(retriever, dsi.read_collection(data))
    assert {"BM25", "dense", "decoder only", "generate"} <= {row.name for row in evaluation.rows}
    rows = ["DPR", "DSI", "DSI+QG", "DR-SCL+QG (beta=0)", "DR-SCL+QG, fused"]
    assert (
        main(["reproduce", "table3", "--data", str(data), *common, "--output", str(tmp_path / "out"), "--rows", *rows])
        == 0
    )
    measured = json.loads((tmp_path / "out" / "table3.json").read_text())["rows"]
    assert {*rows} <= {record["row"] for record in measured}
