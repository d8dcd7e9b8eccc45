"""The rows of the tables, as changes to one base configuration and a way to search.

The base is the system with pseudo-queries (QG); a row says what it does differently. Knows nothing of training and searching:
`dsi_experiments.laboratory` does both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Changes = Mapping[str, Mapping[str, Any]]

ENCODED = ("pseudo_queries", "encoder", "docids")
"""The stages of a training without those of a generator."""
WITHOUT_GENERATOR = {**dict.fromkeys(("bm25", "bm25-cut"), ()), **dict.fromkeys(("dense", "hnsw", "rrf"), ENCODED)}
"""{method that searches without a generator: the stages that it needs}."""

NO_QG: Changes = {"pseudo_queries": {"method": "none"}}
WHOLE: Changes = {"contrastive": {"loss": "none"}, "training": {"train_encoder": True}}
UNTRAINED: Changes = {"contrastive": {"loss": "none"}}
DPR: Changes = {"contrastive": {"loss": "dpr"}}
AT_ONE: Changes = {"search": {"ann_temperature": 1.0}}
ON_DENSE: Changes = {
    "pseudo_queries": {"method": "none"},
    "training": {"documents": False, "objective": "residual"},
}
EIGHTEEN: Changes = {"pseudo_queries": {"per_document": 18}}
SMOLLM2: Changes = {
    "generator": {"reads": "text", "decoder": "HuggingFaceTB/SmolLM2-135M-Instruct", "num_layers": 0},
    "training": {"learning_rate": 2e-4},
}
"""A pre-trained causal model in T5's place; without the Hub, a folder of that path below the current one holds it."""
DIGITS: Changes = {
    "generator": {"docid_tokens": "digits", "num_layers": 2},
    "pseudo_queries": {"per_document": 6},
    "training": {"epochs": 4.0},
    "docids": {"branching": 10, "max_leaf_size": 10},
    "search": {
        "ann_temperature": 0.03,
        "beam_width": 20,
        "lexical_weight": 0.0,
        "token_weight": 0.0,
    },
}
VECTORS: Changes = {
    "generator": {"docid_tokens": "none", "reads": "states", "decoder": "", "num_layers": 0},
    "training": {"epochs": 0.0},
    "docids": {"branching": 0, "max_leaf_size": 20},
    "search": {"beam_width": 40},
}
FLAT: Changes = {"docids": {"max_leaf_size": 1_000_000_000}}  # every document a child of the root
RQ: Changes = {"docids": {"method": "rq", "branching": 16, "max_leaf_size": 10}}
TITLES: Changes = {"docids": {"method": "title", "branching": 0, "max_leaf_size": 20}}
CLUSTERS: Changes = {"docids": {"branching": 64, "max_leaf_size": 300}}  # one level of 64, the documents below


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    name: str
    method: str  # how it answers queries, a key of `dsi_experiments.laboratory.METHODS`
    changes: Changes = field(default_factory=dict)  # settings that differ from the base, {section: {setting: value}}
    published: str = ""  # key of `dsi_experiments.published.NQ10K`
    fresh: bool = False  # begin with fresh weights in the shape of the base's encoder
    # begin with the T5 that the base's decoder comes from, as DSI does; with the base's encoder where there is none
    t5: bool = False
    needs_t5: bool = False  # the same, but refused where there is none
    # what is clustered in place of the documents' embeddings, a key of `dsi_experiments.laboratory.POINTS`
    points: str = ""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages of a training that it needs."""
        return WITHOUT_GENERATOR.get(self.method, (*ENCODED, "generator"))


def t5_of(generator: Mapping[str, Any]) -> str:
    """Return the T5 that a section `[generator]` takes its decoder from, "" for none."""
    return "" if generator.get("reads") == "text" else str(generator.get("decoder", ""))


def _both(*several: Changes) -> Changes:
    merged: dict[str, dict[str, Any]] = {}
    for changes in several:
        for section, settings in changes.items():
            merged.setdefault(section, {}).update(settings)
    return merged


def _cut(length: int) -> Changes:
    return {"encoder": {"document_length": length}}


def _joint(name: str, *changes: Changes) -> Row:
    """A row of the table "papers" whose encoder and decoder are trained together, on first tokens of documents as in DSI."""
    return Row(name, "alone-10", _both(DIGITS, WHOLE, _cut(32), *changes))


def _frozen(name: str, method: str, *changes: Changes) -> Row:
    """A row on the base's encoder."""
    return Row(name, method, _both(*changes))


def _one(section: str, **settings: Any) -> Changes:
    return {section: settings}


TRAINED_WHOLE: Changes = {"training": {"train_encoder": True, "epochs": 10.0}}
"""Encoder and decoder trained together, as DSI is: a pass takes ten times as long as one of a decoder, so there are fewer."""

TABLES: dict[str, tuple[Row, ...]] = {
    "equal": (
        Row("Dense, before contrastive training", "dense", UNTRAINED),
        Row("Dense, SCL", "dense"),
        Row("Dense, DPR", "dense", DPR),
        Row("DSI, encoder frozen", "decoder", UNTRAINED),
        Row("SCL encoder, its docids", "decoder"),
        Row("DPR encoder, its docids", "decoder", DPR),
        Row("SCL encoder, docids by the sentence encoder", "decoder", points="untrained"),
        Row("DPR encoder, docids by the sentence encoder", "decoder", DPR, points="untrained"),
        Row("DSI, all weights, 10 passes", "decoder", _both(UNTRAINED, TRAINED_WHOLE)),
        Row("DR-SCL, all weights, 10 passes", "decoder", TRAINED_WHOLE),
        Row("DR-SCL, fused", "fused"),
        Row("DR-SCL, alpha 0.7 at temperature 1", "fused-0.7", AT_ONE),
        Row("DR-SCL, all weights, fused", "fused", TRAINED_WHOLE),
        Row("DR-SCL, all weights, alpha 0.7 at temperature 1", "fused-0.7", _both(TRAINED_WHOLE, AT_ONE)),
    ),
    "table3": (
        Row("BM25, title + whole text", "bm25", published="BM25"),
        Row("BM25, title + cut text", "bm25-cut"),
        Row("Dense, before contrastive training", "dense", UNTRAINED),
        Row("DPR", "dense", DPR, "DPR"),
        Row("DPR, HNSW", "hnsw", DPR),
        Row("DSI", "decoder", _both(WHOLE, NO_QG), "DSI", t5=True),
        Row("DSI+QG", "decoder", WHOLE, "DSI+QG", t5=True),
        Row("DR-SCL (beta=0)", "decoder", NO_QG, "DR-SCL (beta=0)"),
        Row("DR-SCL+QG (beta=0)", "decoder", published="DR-SCL+QG (beta=0)"),
        Row("DR-SCL+QG, fused", "fused", published="DR-SCL+QG"),
        Row("DR-SCL+QG, fused, alpha 0.7", "fused-0.7", published="DR-SCL+QG"),
        Row("SmolLM2+QG (beta=0)", "decoder", SMOLLM2),
        Row("SmolLM2+QG, fused", "fused", SMOLLM2),
        Row("SmolLM2+QG, fused, alpha 0.7", "fused-0.7", SMOLLM2),
        Row("Dense, after contrastive training", "dense"),
        Row("RRF of BM25 and dense", "rrf"),
        Row("Dense + BM25", "dense+bm25", ON_DENSE),  # the decoder that trains fastest; it is not used
        Row("DR-SCL+QG, dense + decoder after search", "post-hoc"),
        Row("DR-SCL on top of dense, fused", "fused", ON_DENSE),
        Row("DR-SCL+QG, random docids (beta=0)", "decoder", {"docids": {"method": "random"}}),
        Row("DR-SCL+QG, docids of query means (beta=0)", "decoder", points="query-means"),
        Row("DR-SCL+QG, 18 pseudo-queries a document (beta=0)", "decoder", EIGHTEEN),
        Row("DR-SCL+QG, 18 pseudo-queries a document, fused", "fused", EIGHTEEN),
        Row("DR-SCL+QG, documents cut at 32 tokens (beta=0)", "decoder", _cut(32)),
        Row("DR-SCL+QG, documents cut at 32 tokens, fused", "fused", _cut(32)),
        Row("DR-SCL+QG, documents cut at 64 tokens (beta=0)", "decoder", _cut(64)),
        Row("DR-SCL+QG, documents cut at 64 tokens, fused", "fused", _cut(64)),
    ),
    "table4": (
        Row("T5", "decoder", _both(NO_QG, UNTRAINED), "T5", needs_t5=True),
        Row("no pre-training (random weights)", "decoder", _both(NO_QG, UNTRAINED), fresh=True),
        Row("sentence encoder", "decoder", _both(NO_QG, UNTRAINED), "Sentence-T5"),
        Row("+ DPR loss", "decoder", _both(NO_QG, DPR), "+ DPR loss", points="untrained"),
        Row("+ SCL loss", "decoder", NO_QG, "+ SCL loss", points="untrained"),
    ),
    "table5": (
        Row("docids by the sentence encoder", "decoder", NO_QG, "docids by Sentence-T5", points="untrained"),
        Row("docids by the SCL encoder", "decoder", NO_QG, "docids by the SCL encoder"),
    ),
    "papers": (
        Row("BM25", "bm25"),
        _frozen("dense", "dense"),
        _frozen("dense + BM25", "dense+bm25"),
        _joint("DSI, naive docids", NO_QG, _one("docids", method="random")),
        _joint("DSI, atomic docids", NO_QG, FLAT),
        _joint("DSI, semantic docids", NO_QG),
        _joint("NCI without its decoder"),
        _frozen("GENRE, tokens without T5's rows", "alone-10", DIGITS, TITLES),
        _frozen("RIPOR", "alone-10", DIGITS, RQ, _one("training", objective="ripor")),
        _frozen("RIPOR without margins", "alone-10", DIGITS, RQ),
        _frozen("LTRGR", "alone-10", DIGITS, _one("training", objective="ltrgr")),
        _frozen("LTRGR without margin", "alone-10", DIGITS),
        _frozen("GDR", "clusters-10", DIGITS, CLUSTERS),
    ),
}
"""The tables: those of the paper (rows of table3 without `published` are not in it), and one of other papers."""

REFERENCES = {
    "table3": "RRF of BM25 and dense",
    "table4": "sentence encoder",
    "table5": "docids by the sentence encoder",
    "equal": "DSI, encoder frozen",
    "papers": "dense + BM25",
}
"""The row that the others of a table are tested against."""
