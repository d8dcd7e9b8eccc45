"""Explanations of documents: every claim against the searches themselves; matched words against codes as stored and BM25."""

import dataclasses
import json
import pickle
import re
import sys
import unicodedata
from dataclasses import replace

import datasets
import numpy as np
import pandas
import pyarrow as pa
import pytest

from dsi import Retriever, SearchConfig
from dsi.commands.main import main
from dsi.contrastive.config import EncoderConfig, TokensConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.tokens import TokenHead
from dsi.docids.clustering import assemble
from dsi.docids.schemes import DocidsConfig, SchemeInput, make_docids
from dsi.docids.token_vectors import TokenVectors, decode
from dsi.docids.words.bm25 import BM25
from dsi.search.explain.matches import StoredText, _term_places, _whole_word
from dsi.search.hits import Hit, Hits, Match, Span, Uncovered, cut_at_matches, excerpt
from tests.support.parts import from_parts
from tests.support.small import MINIPEDIA, PROMPTS, random_generator

RECORDS = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()][:50]
QUERIES = ["the law of light and gases in physics", "which capitals are on the danube", "long rivers, and kings"]
TRIALS = 20


def index_of(folder, kind: str = "vectors", pieces: int = 1, **config) -> Retriever:
    """An index of 50 documents with BM25; with "vectors" tokens also token vectors."""
    encoder = Encoder.load(EncoderConfig(name=str(folder), **{**PROMPTS, "document_length": 24}), device="cpu")
    titles, texts = ([record[name] for record in RECORDS] for name in ("title", "text"))
    pieces_of = encoder.piece_texts(titles, texts, pieces)
    flat = [piece for own in pieces_of for piece in own]
    rows = np.repeat(np.arange(len(RECORDS)), list(map(len, pieces_of))) if pieces > 1 else None
    spans = np.array([span for own in encoder.cut(titles, texts, pieces) for span in own.spans])
    head = TokenHead.fit(encoder, flat, TokensConfig(dim=32, bits=8))
    embeddings, codes = head.encode(encoder, flat)
    schema = DocidsConfig(branching=4, max_leaf_size=3, pieces=pieces)
    docids = make_docids(SchemeInput(embeddings, schema, rows=rows))
    tokens = TokenVectors(head.matrix, head.bits, (codes,), np.arange(len(codes), dtype=np.int32))
    tree = assemble(docids, embeddings, tokens if kind == "vectors" else None, spans if pieces > 1 else None)
    tree = replace(tree, pieces=pieces)
    columns = {"doc_id": [record["_id"] for record in RECORDS], "title": titles, "text": texts, "n": list(range(50))}
    generator = None if kind == "vectors" else random_generator(tree)
    bm25 = BM25(columns["doc_id"], [f"{a} {b}" for a, b in zip(titles, texts, strict=True)])
    return from_parts(encoder, tree, generator, datasets.Dataset.from_dict(columns), SearchConfig(**config), bm25)


@pytest.fixture(scope="module")
def vectors(sentence_bert_folder):
    return index_of(sentence_bert_folder, alpha=0.5)


@pytest.fixture(scope="module")
def in_pieces(sentence_bert_folder):
    return index_of(sentence_bert_folder, pieces=3, alpha=0.5, token_weight=0.5)


@pytest.fixture(scope="module")
def digits(sentence_bert_folder):
    return index_of(sentence_bert_folder, "digits", ann_temperature=0.1, alpha=0.5)


# Why is this document (not) here?


def options_of(rng, vectors: bool) -> dict:
    """Random options of a search that often misses documents."""
    options = {
        "k": int(rng.integers(1, 6)),
        "beam_width": int(rng.integers(1, 5)),
    }
    if not vectors:
        options["alpha"] = float(rng.choice([0, 0.5, 1]))
    else:
        options |= {
            "candidates": int(rng.choice([1, 3, 30])),
            "lexical_weight": float(rng.choice([0, 0.01, 0.3])),
            "token_weight": float(rng.choice([0, 0.3, 2])),
        }
    if rng.random() < 0.3:
        options["where"] = f"n < {rng.integers(5, 50)}"
    return options


@pytest.mark.parametrize("name", ["vectors", "in_pieces", "digits"])
@pytest.mark.parametrize("trials", [1, pytest.param(TRIALS, marks=pytest.mark.slow)])
def test_every_claim_about_a_document_is_true(request, name, trials):
    retriever, seen = request.getfixturevalue(name), set()
    doc_ids = list(retriever.snapshot.documents.column("doc_id"))
    for trial in range(trials):
        rng = np.random.default_rng([trial, len(name)])
        query, options = QUERIES[trial % 3], options_of(rng, name != "digits")
        hits = retriever.search(query, **options)
        given = {option: value for option, value in options.items() if option not in ("k", "where")}
        scores = dict(
            zip(doc_ids, retriever.snapshot.follow([query], [doc_ids], **given).scores[0].tolist(), strict=True)
        )
        below = int(options["where"].split()[-1]) if "where" in options else len(doc_ids)
        for doc_id in doc_ids:
            seen |= check(retriever, query, options, hits, doc_id, scores, set(doc_ids[:below]))
    assert {"here", "less"} <= seen
    assert trials < TRIALS or {"node", "beam", "number"} <= seen


def check(retriever, query, options, hits, doc_id, scores, allowed) -> set[str]:
    """Check an explanation against scores computed one by one, and searches; return the kinds of claims that it makes."""
    own, ranks, score = hits.explain(doc_id), {hit.doc_id: hit.rank for hit in hits}, scores[doc_id]
    assert own.score == pytest.approx(score, rel=1e-4, abs=1e-5)
    assert sum(own.parts.values()) == pytest.approx(own.score, abs=1e-4)
    assert (own.rank, own.total, own.answers) == (ranks.get(doc_id), len(allowed), len(hits))
    assert [step.digits for step in own.path] == [own.path[-1].digits[:n] for n in range(1, len(own.path) + 1)]
    if doc_id not in allowed:
        assert (own.reason, own.overall_rank) == ("The filter excludes it.", None)
        return {"filter"}
    near = 1e-4 * max(1, abs(score))
    higher = sum(scores[other] > score + near for other in allowed)
    assert higher < own.overall_rank <= 1 + sum(scores[other] >= score - near for other in allowed)
    if doc_id in ranks:
        assert own.reason.startswith(f"It is here, at rank {ranks[doc_id]}. Of all {len(allowed)} documents")
        assert own.returned_by is None
        return {"here"}
    assert own.last_score == pytest.approx(hits[-1].score, rel=1e-5)
    if "up to rounding" in own.reason:
        assert score == pytest.approx(own.last_score, rel=1e-3, abs=1e-4)
        return {"tie"}
    if "is less than" in own.reason:
        assert score < own.last_score
        assert own.reason.endswith(f"it is number {own.overall_rank}.")
        return {"less"}
    return {check_loss(retriever, query, options, own)} | {check_remedy(retriever, query, options, own)}


def check_loss(retriever, query, options, own) -> str:
    assert own.score > own.last_score
    found = re.search(
        r"its node ([\d.]+) left the walk at level (\d+): it scores (\S+), the last node kept (\S+)\.", own.reason
    )
    if not found:
        assert "it was not among the candidates that get the complete score" in own.reason
        assert "pruned" not in [step.state for step in own.path]
        assert own.level is None
        return "candidates"
    digits, level = tuple(map(int, found[1].split("."))), int(found[2])
    nodes = retriever.explain(query, **options).levels[level - 1]
    (node,) = [node for node in nodes if node.digits == digits]
    inner = [other for other in nodes if retriever.snapshot.tree.node(other.digits) < retriever.snapshot.tree.num_inner]
    assert not node.kept
    assert own.path[level - 1][0::2] == (digits, "pruned")
    assert {step.state for step in own.path[: level - 1]} <= {"kept"}
    assert (own.level, float(found[3])) == (level, pytest.approx(node.score, abs=1e-3))
    lowest = min((other.score for other in inner if other.kept), default=np.inf)
    assert float(found[4]) == pytest.approx(lowest, abs=1e-3) or lowest == np.inf
    return "node"


def check_remedy(retriever, query, options, own) -> str:
    def returns(**changes):
        merged = {**options, **changes}
        if merged.get("method") == "exact":
            merged = {name: merged[name] for name in merged if name not in ("beam_width", "candidates")}
        return own.doc_id in [hit.doc_id for hit in retriever.search(query, **merged)]

    if own.returned_by is None:
        assert own.overall_rank > own.answers or "No other search" in own.reason
        return "number"
    assert returns(**own.returned_by)
    ((name, value),) = own.returned_by.items()
    if name == "beam_width":
        assert own.reason.endswith(f"A beam of {value} returns it.")
        assert value == 2 * retriever.explain(query, **options).config.beam_width or not returns(beam_width=value // 2)
        return "beam"
    assert own.reason.split(". ")[-1].startswith("No wider beam returns it; ")
    assert not returns(beam_width=2 * retriever.snapshot.tree.num_inner)
    return name


def test_a_document_far_down_gets_no_promise(vectors):
    query = QUERIES[1]
    last = vectors.search(query, k=50, method="exact")[-1].doc_id
    own = vectors.search(query, k=3, beam_width=1).explain(last)
    assert own.overall_rank == 50
    assert own.reason.endswith("Of all 50 documents it is number 50.")
    assert own.returned_by is None
    assert "beam" not in own.reason


def test_hits_explain_themselves_and_say_so_if_they_cannot(vectors):
    hits = vectors.search(QUERIES[0], k=3)
    assert hits[1].explain().rank == 2
    assert str(hits[1].explain()) == str(hits.explain(hits[1].doc_id))
    with pytest.raises(ValueError, match="The doc_id 'nobody' is not in the index"):
        hits.explain("nobody")
    copies = pickle.loads(pickle.dumps(hits))
    assert copies == hits
    assert (copies.exact, copies.query) == (hits.exact, hits.query)
    assert copies.matches() == [[]] * 3
    for forgotten in (copies, Hits(map(replace, hits), hits.exact, hits.query)):
        for call in (lambda own=forgotten: own.explain("danube"), forgotten[0].explain):
            with pytest.raises(ValueError, match="These hits do not know their search any more"):
                call()


def test_extra_scores_of_the_right_query_are_explained(vectors):
    extra = np.zeros((2, 50), dtype=np.float32)
    extra[1, 7] = 100
    _, hits = vectors.search(QUERIES[:2], k=2, extra_scores=extra)
    assert hits[0].explain().parts["extra"] == 100


def test_the_command_explains_a_document(vectors, tmp_path, capsys):
    vectors.save(tmp_path / "index")
    hits = vectors.search(QUERIES[1], k=2)
    missing = next(
        doc_id for doc_id in vectors.snapshot.documents.column("doc_id") if doc_id not in [hit.doc_id for hit in hits]
    )
    run = str(tmp_path / "index")
    assert main(["explain", run, QUERIES[1], "-k", "2", "--document", missing]) == 0
    assert capsys.readouterr().out.strip() == str(hits.explain(missing))
    assert main(["explain", run, QUERIES[1], "--document", "nobody"]) == 2
    assert "is not in the index" in capsys.readouterr().err


# Matched words.


@pytest.mark.parametrize("name", ["vectors", "in_pieces"])
def test_shares_of_late_interaction_add_up_and_come_from_the_codes_as_stored(request, name):
    retriever, weight = request.getfixturevalue(name), 0.7
    tokens, several = retriever.snapshot.tree.tokens, 0
    for query in QUERIES:
        hits = retriever.search(query, k=8, token_weight=weight, lexical_weight=0.1)
        encoded = retriever.encode_queries([query])
        vectors = tokens.project(encoded.batches[0].word_states(0))
        spans = retriever.snapshot.encoder.spans(retriever.snapshot.encoder.query_texts([query])[0], "query")
        of_words = [span.end > span.start for span in spans if not span.is_special]  # not the prompt's
        for hit, matches in zip(hits, hits.matches(), strict=True):
            own = hit.explain()
            assert own.matches == matches
            codes = tokens.gather(np.array([position_of(retriever, own)])).codes
            stored, norms = decode(codes, tokens.dim, tokens.bits)
            products = vectors @ (stored / norms[:, None]).T  # [query tokens, document tokens]
            shares = weight * products.max(axis=1) / len(vectors)
            assert shares.sum() == pytest.approx(own.parts["tokens"], abs=1e-5)
            whole = shares[of_words].sum() + own.parts["BM25"]
            assert sum(match.share for match in matches) == pytest.approx(whole, abs=1e-5)
            for match in matches:
                for field, start, end, text in match.spans:
                    assert getattr(hit, field)[start:end] == text
                    several += (
                        not match.is_clear
                        and field == "text"
                        and start >= retriever.snapshot.encoder.cut([hit.title], [hit.text], 1)[0].spans[0][1]
                    )
            assert [match.word for match in matches] == re.findall(r"\w+|[^\w\s]", query)
    assert bool(several) == (name == "in_pieces")  # those of later pieces; a clear word has its other places too


def position_of(retriever, own) -> int:
    """The docid position at the end of a path."""
    return retriever.snapshot.tree.node(own.path[-1].digits) - retriever.snapshot.tree.num_inner


def test_a_token_finds_its_own_word(vectors):
    record = RECORDS[3]
    query = " ".join(record["text"].split()[:6])
    (hit,) = vectors.search(query, k=1, token_weight=5.0, allow=[record["_id"]])
    found = {match.word: {span.text.lower() for span in match.spans} for match in hit.explain().matches}
    same = [word for word, texts in found.items() if word.lower() in texts]
    assert len(same) >= 3  # the encoder is random, but its states lean to their own token


def test_without_late_interaction_the_words_of_bm25_are_marked(vectors):
    for options in ({"token_weight": 0.0, "lexical_weight": 0.2}, {"method": "exact", "lexical_weight": 0.2}):
        for hit in vectors.search(QUERIES[0], k=10, **options):
            own = hit.explain()
            assert sum(match.share for match in own.matches) == pytest.approx(own.parts["BM25"], abs=1e-5)
            whole = {field: re.findall(r"\w+", getattr(hit, field).lower()) for field in ("title", "text")}
            for match in own.matches:
                for field, words in whole.items():
                    assert sum(span.field == field for span in match.spans) == words.count(match.word)
                assert all(getattr(hit, at.field)[at.start : at.end].lower() == match.word for at in match.spans)
                assert match.is_clear == (match.word not in ("of", "and", "the", "in"))
    assert vectors.search(QUERIES[0], k=3, token_weight=0, lexical_weight=0).matches() == [[], [], []]


def test_words_of_the_same_stem_are_marked():
    document = StoredText(0, "Rivers", "a river, rivals and FLOWING")
    places = _term_places(document, "english", {"river", "flow"})
    assert [(span.field, span.text) for span in places["river"]] == [("title", "Rivers"), ("text", "river")]
    assert [(span.start, span.end, span.text) for span in places["flow"]] == [(20, 27, "FLOWING")]
    whole = _term_places(document, "none", {"river", "flows"})
    assert [span.text for span in whole["river"]] == ["river"]


def test_without_spaces_a_token_is_a_word():
    text = "他司职 什么位置，中甲球队Linux系统 한국어를"
    words = {
        token: text[slice(*_whole_word(text, at := text.index(token), at + len(token)))]
        for token in ("司职", " 什", "么位置，", "中甲", "nux", "系统", "국어")
    }
    assert words == {
        "司职": "司职",
        " 什": "什",
        "么位置，": "么位置",
        "中甲": "中甲",
        "nux": "Linux",
        "系统": "系统",
        "국어": "한국어를",
    }
    thai, mark = "แม่น้ำสายนี้ยาว", "น้ำ"
    assert _whole_word(thai, thai.index(mark), thai.index(mark) + 3) == (thai.index(mark), thai.index(mark) + 3)


def test_words_of_bm25_without_spaces_are_marked_where_they_stand():
    places = _term_places(StoredText(0, "东京", "在东京都使用Linux，东京"), "none", {"东京", "linux"})
    assert [(span.field, span.start, span.text) for span in places["东京"]] == [
        ("title", 0, "东京"), ("text", 1, "东京"), ("text", 12, "东京"),
    ]  # fmt: skip
    assert [span.text for span in places["linux"]] == ["Linux"]


def test_marks_belong_to_the_words_that_are_marked():
    text = unicodedata.normalize("NFD", "une crème brûlée")
    ((_, start, end, found),) = _term_places(StoredText(0, "", text), "french", {"crem"})["crem"]
    assert text[start:end] == found == unicodedata.normalize("NFD", "crème")
    assert _whole_word(text, start + 1, start + 2) == (start, end)


def _with_documents(index, documents):
    """Return an index of the same parts with another document table."""
    own = index.snapshot
    return from_parts(own.encoder, own.tree, own.generator, documents, index.search_config, own.lexical)


def test_an_index_without_texts_finds_words_of_titles(vectors):
    documents = vectors.snapshot.documents.table.drop_columns(["text"])
    bare = _with_documents(vectors, documents)
    for options in ({"token_weight": 0.5}, {"lexical_weight": 0.5}):
        whole, own = (index.search(RECORDS[5]["title"], k=5, **options) for index in (vectors, bare))
        for matches, others in zip(whole.matches(), own.matches(), strict=True):
            assert [match.share for match in matches] == pytest.approx([other.share for other in others], abs=1e-6)
            for match, other in zip(matches, others, strict=True):
                assert [span for span in match.spans if span.field == "title"] == list(other.spans)
        assert own.explain(own[0].doc_id).matches == own.matches()[0]


def test_a_text_with_other_tokens_than_those_stored_is_not_marked(vectors):
    texts = [f"another {text}" for text in vectors.snapshot.documents.column("text")]
    documents = vectors.snapshot.documents.table.drop_columns(["text"]).append_column("text", pa.array(texts))
    other = _with_documents(vectors, documents)
    short = [row for row, text in enumerate(texts) if len(vectors.snapshot.encoder.spans(text, "document")) < 20]
    for matches in other.search(QUERIES[0], k=5, token_weight=1.0).matches():
        assert all(span.field in ("title", "text") for match in matches for span in match.spans)
    assert not short  # texts are cut at 24 tokens here: as many tokens as before


# Reading hits.


def test_hits_have_metadata_and_make_a_table(vectors):
    hits = vectors.search(QUERIES[0], k=3)
    table = hits.to_df()
    assert isinstance(table, pandas.DataFrame)
    assert table.columns.tolist() == ["rank", "score", "doc_id", "title", "digits", "text", "passage", "n"]
    assert (
        table["n"].tolist()
        == [hit.metadata["n"] for hit in hits]
        == [vectors.snapshot.documents.rows[hit.doc_id] for hit in hits]
    )
    clash = Hits([Hit(1, 0.5, "a", "", (0,), None, {"rank": "first"})], exact=False)
    assert clash.to_df().iloc[0].to_dict()["metadata.rank"] == "first"
    names = ["rank", "score", "doc_id", "title", "digits", "text", "passage"]
    assert Hits([], exact=True).to_df().columns.tolist() == names


def test_a_hit_becomes_a_dictionary_without_its_search(vectors):
    (hit,) = vectors.search(QUERIES[0], k=1)
    assert dataclasses.asdict(hit) == {"text": None, "metadata": {}, "passage_span": None, "pieces": ()} | hit.as_dict()


def test_a_table_needs_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"hits.to_df\(\) needs pandas; run pip install pandas"):
        Hits([], exact=True).to_df()


def test_hits_print_what_was_proven_and_nothing_of_certainty(vectors):
    for method, said in (("exact", "; proven: no other scores higher"), ("generate", "")):
        options = {} if method == "exact" else {"beam_width": 1, "candidates": 3}
        hits = vectors.search(QUERIES[0], k=3, method=method, lexical_weight=0.2, **options)
        lines = str(hits).splitlines()
        lacking = f"; {hits.uncovered}" if any(hits.uncovered) else ""
        assert lines[0] == f'"{QUERIES[0]}"  (3 documents{said}{lacking})'
        assert [line.split()[2] for line in lines[1::2]] == [hit.doc_id for hit in hits]
        assert repr(hits) == str(hits)
        assert "certif" not in str(hits) + hits._repr_html_()
    marked = hits.format("[{}]".format)
    assert re.search(r"\[\w+\]", marked.split("\n", 2)[2])
    assert str(Hits(hits[:2], exact=True, query=QUERIES[0])).startswith(f'"{QUERIES[0]}"  (2 documents)\n')


def test_a_notebook_gets_marks_and_no_html_of_documents():
    text = "<b>bold</b> & neon"

    class Search:
        def matches(self, doc_ids):
            return [[Match("neon", 0.5, (Span("text", 14, 18, "neon"),))] for _ in doc_ids]

        def uncovered(self, hits):
            return Uncovered(("<q>",))

    hit = Hit(1, 0.5, "<i>", "<script>", (0,), text, {"<u>": "<s>"})
    shown = Hits([hit], exact=False, query="<q>", search=Search())._repr_html_()
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; <mark>neon</mark>" in shown
    assert not re.search(r"<(b>bold|script|i>|u>|s>|q>)", shown)


@pytest.mark.parametrize(
    ("title", "text", "label"),
    [
        ("Neon", "A gas.", "Neon"),
        ("", "A gas.", "A gas."),
        (" ", None, "d"),
        ("", "word " * 99, "word " * 14 + "word …"),
    ],
)
def test_a_document_without_a_title_is_called_by_its_first_words(title, text, label):
    assert Hit(1, 0.5, "d", title, (0,), text).label == label
    assert label.split()[0] in Hits([Hit(1, 0.5, "d", title, (0,), text)], exact=False)._repr_html_()


def test_an_excerpt_is_short_and_holds_the_most_matched_words():
    words = [f"word{n}{'x' * (n % 4)}" for n in range(300)]
    text = " ".join(words)
    at = {word: text.index(word) for word in ("word200", "word205", "word20")}
    matches = [Match(word, 0.1, (Span("text", start, start + len(word), word),)) for word, start in at.items()]
    start, end = excerpt(text, matches)
    assert "word200" in text[start:end]
    assert "word205" in text[start:end]
    assert 100 < end - start <= 161
    assert text[start:end].split() == [word for word in words if word in text[start:end].split()]
    assert sum(found for _, found in cut_at_matches(text, matches, "text", start, end)) == 2
    assert excerpt("x" * 500, []) == (0, 160)
    assert excerpt("", []) == (0, 0)


def test_texts_without_spaces_are_cut_near_the_limit():
    text = f"停止（Lour Tsang 生于{'中甲球队成都谢菲联宣布引进他' * 15}邹游{'司职中场的位置' * 40}"
    assert excerpt(text, []) == (0, 160)
    assert Hit(1, 0.5, "d", "", (0,), text).label == f"{text[:78]} …"
    at = text.index("邹游")
    start, end = excerpt(text, [Match("邹游", 0.1, (Span("text", at, at + 2, "邹游"),))])
    assert start <= at < at + 2 <= end
    assert end - start == 160
    marked = "x" + "e\u0301" * 200  # never between a letter and its mark
    assert excerpt(marked, []) == (0, 159)


def test_an_excerpt_begins_with_the_sentence_that_answers_and_stays_in_the_passage():
    text = (
        "The Danube is a river. " * 10 + "Four capitals stand on its banks: Vienna, Bratislava. " + "It is long. " * 20
    )
    at = text.index("capitals")
    matches = [
        Match("river", 0.1, (Span("text", 16, 21, "river"),)),
        Match("capitals", 0.2, (Span("text", at, at + 8, "capitals"),)),
    ]
    start, end = excerpt(text, matches)
    assert text[start:].startswith("Four capitals")
    assert len(text[start:end]) <= 161
    assert excerpt(text, matches, within=(0, 100)) == (0, 100)
    titled = [matches[0], Match("danube", 0.3, (Span("title", 0, 6, "Danube"), Span("text", 4, 10, "Danube")))]
    assert excerpt(text, [titled[1], matches[1]])[0] == text.index("Four")
    start, end = excerpt(text, [], within=(at, len(text)))
    assert start == at
    start, end = excerpt(text, matches, within=(0, 220))
    assert (start, end <= 220) == (0, True)


def test_hits_show_their_passage():
    text = "first words " * 30 + "second " * 60
    hits = Hits([Hit(1, 0.5, "d", "Title", (0,), text, {}, (360, len(text)))], exact=False)
    assert hits[0].passage == "second " * 60
    assert "first" not in str(hits)
    assert hits[0].as_dict()["passage_span"] == (360, len(text))
    assert hits[0].as_dict()["passage"] == hits[0].passage
    assert pickle.loads(pickle.dumps(hits[0])) == hits[0]
    whole = Hit(1, 0.5, "d", "Title", (0,), "text")
    assert whole.passage == "text"
    assert "passage" not in whole.as_dict()
    assert Hit(1, 0.5, "d", "Title", (0,), None, {}, (3, 9)).passage is None


def test_an_explanation_of_a_document_prints_no_control_character(vectors):
    hits = vectors.search(QUERIES[0], k=1)
    why = dataclasses.replace(hits[0].explain(), label="\x1b]0;owned\x07", query="a\x1b[2J")
    assert "\x1b" not in str(why)
    assert r"\x1b]0;owned" in str(why)
