"""PyTerrier, LangChain and LlamaIndex: the answers of a search in their forms, their own checks, and refusals in our words."""

import asyncio
import inspect
import sys
from copy import copy
from importlib import import_module

import pytest

import dsi
from dsi.eval.measures import evaluate, mean
from dsi.eval.trec import without_ties
from dsi.integrations import retrieval
from dsi.store.documents.table import DocumentTable
from tests.support.bridged import folder, retriever  # noqa: F401 (fixtures)
from tests.support.parts import from_parts

ADAPTERS = {"pyterrier": "num_results", "langchain": "k", "llama_index": "similarity_top_k"}
"""{module: how it calls the number of documents}"""
QUERY, QUERIES = "long rivers of europe", ["long rivers of europe", "neon", "which capitals are on the danube"]


def adapter(name):
    """A module, skipped if its library is not installed."""
    pytest.importorskip({"pyterrier": "pyterrier", "langchain": "langchain_core"}.get(name, "llama_index.core"))
    return import_module(f"dsi.integrations.{name}")


@pytest.fixture(scope="module")
def without_texts(retriever):
    """The same index without texts, metadata and BM25."""
    documents = retriever.snapshot.documents.table.select(["doc_id", "title"])
    return from_parts(retriever.snapshot.encoder, retriever.snapshot.tree, retriever.snapshot.generator, documents)


# What all three share.


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("pyterrier", "pyterrier", "pyterrier"),
        ("langchain", "langchain_core.callbacks", "langchain"),
        ("llama_index", "llama_index.core.callbacks", "llama-index"),
    ],
)
def test_a_missing_library_is_named_with_its_remedy(name, library, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)  # importing it fails
    monkeypatch.delitem(sys.modules, f"dsi.integrations.{name}", raising=False)
    with pytest.raises(ModuleNotFoundError) as raised:
        import_module(f"dsi.integrations.{name}")
    assert str(raised.value) == f'{library} is not installed; run pip install "dr-scl[{extra}]".'


WRONG = [
    ({"beam_with": 3}, TypeError, "DocidRetriever() has no option 'beam_with'; did you mean 'beam_width'?"),
    ({"exact": True}, TypeError, "DocidRetriever() has no option 'exact'; there are k, method, "),
    ({"method": "exact", "beam_width": 9}, ValueError, "DocidRetriever() does not use beam_width"),
    ({"token_weight": 1}, ValueError, "token_weight"),
    *(({"COUNT": count}, ValueError, "COUNT") for count in (0, "5")),
    ({"alpha": 2}, ValueError, "alpha"),
    ({"where": "yeer > 3"}, ValueError, "yeer"),
    ({"retriever": 3}, TypeError, "retriever"),
    ({"retriever": "no-index"}, FileNotFoundError, "no-index"),
]
"""(options of a retriever, its error, what that names)."""


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize(("options", "error", "named"), WRONG)
def test_what_a_search_would_refuse_is_refused_at_once_and_in_our_words(name, options, error, named, retriever):
    count = ADAPTERS[name]
    given = {"retriever": retriever, **{count if key == "COUNT" else key: value for key, value in options.items()}}
    with pytest.raises(error) as raised:
        adapter(name).DocidRetriever(**given)
    assert type(raised.value) is error  # no error of the other library
    assert named.replace("COUNT", count) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("query", [3, "a\0b"])
def test_a_bad_query_is_refused_in_our_words(query, retriever):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"qid": ["1"], "query": [query]})
    calls = [
        lambda: adapter("pyterrier").DocidRetriever(retriever)(frame),
        lambda: adapter("langchain").DocidRetriever(retriever).invoke(query),
        lambda: adapter("langchain").DocidRetriever(retriever).batch([query]),
    ]
    if isinstance(query, str):  # its own class for queries refuses others
        calls.append(lambda: adapter("llama_index").DocidRetriever(retriever).retrieve(query))
    for call in calls:
        with pytest.raises(ValueError, match=r"^Query '?0'? must be a (string|text)") as raised:
            call()
        assert "\n" not in str(raised.value)


# PyTerrier.


@pytest.fixture
def pt():
    return pytest.importorskip("pyterrier")


def test_frames_of_queries_become_frames_of_documents(pt, retriever):
    import pandas as pd

    topics = pd.DataFrame({"qid": [7, 3, 7], "query": QUERIES, "mark": list("abc")}, index=[5, 5, 0])
    search = adapter("pyterrier").DocidRetriever(retriever, num_results=4, where="year > 2000", method="exact")
    found = search(topics)
    assert list(found.columns) == ["qid", "query", "mark", "docno", "score", "rank"]
    assert list(found.index) == list(range(12))
    assert list(found["rank"]) == [0, 1, 2, 3] * 3
    assert list(found["qid"]) == [7] * 4 + [3] * 4 + [7] * 4
    assert list(found["mark"]) == [*"aaaabbbbcccc"]
    expected = retriever.search(QUERIES, k=4, where="year > 2000", method="exact")
    assert list(found["docno"]) == [hit.doc_id for hits in expected for hit in hits]
    assert list(found["score"]) == [hit.score for hits in expected for hit in hits]
    assert list(topics.columns) == ["qid", "query", "mark"]  # what was given is as it was
    assert search.search(QUERY)["docno"].tolist() == [hit.doc_id for hit in expected[0]]
    assert repr(search) == "DocidRetriever(num_results=4, where='year > 2000', method='exact')"


def test_a_query_may_find_fewer_documents_or_none(pt, retriever):
    import pandas as pd

    module, words = adapter("pyterrier"), retriever.get("neon").text
    topics = pd.DataFrame({"qid": ["1", "2"], "query": [words, "qqq"]})
    assert len(module.DocidRetriever(retriever, num_results=5, where="year > 3000")(topics)) == 0
    assert len(module.DocidRetriever(retriever, num_results=1000)(topics)) == 80
    lexical = module.LexicalRetriever(retriever, num_results=1000)(topics)
    run = retriever.snapshot.lexical.run({"1": words}, 1000)["1"]
    assert 1 < len(run) < 40
    assert list(lexical["docno"]) == list(run)
    assert list(lexical["score"]) == without_ties(list(run.values()))  # two documents have one score
    assert list(lexical["score"]) == pytest.approx(list(run.values()), rel=1e-6)
    assert set(lexical["qid"]) == {"1"}  # no document has a word of the other query


def test_pyterrier_can_inspect_the_transformers(pt, retriever):
    import pandas as pd

    module = adapter("pyterrier")
    search, lexical = module.DocidRetriever(retriever, beam_width=15), module.LexicalRetriever(retriever)
    for transformer in (search, lexical):
        assert pt.inspect.transformer_inputs(transformer) == [["qid", "query"]]
        columns = ["qid", "query", "mark"]
        found = [*columns, "docno", "score", "rank"]
        assert pt.inspect.transformer_outputs(transformer, columns) == found
        empty = transformer(pd.DataFrame({"qid": [], "query": [], "mark": []}))
        full = transformer(pd.DataFrame({"qid": ["1"], "query": [QUERY], "mark": [1.0]}))
        assert list(empty.columns) == list(full.columns) == found
        assert empty.dtypes[["docno", "score", "rank"]].equals(full.dtypes[["docno", "score", "rank"]])
        with pytest.raises(pt.validate.InputValidationError):
            transformer(pd.DataFrame({"qid": ["1"], "query": [QUERY], "docno": ["danube"]}))
    loader = module.TextLoader(retriever, "title")
    assert pt.inspect.transformer_inputs(loader) == [["docno"]]
    assert pt.inspect.transformer_outputs(loader, ["qid", "docno"]) == ["qid", "docno", "title"]
    assert pt.inspect.transformer_outputs(search >> loader, ["qid", "query"])[-1] == "title"
    fewer = pt.inspect.transformer_apply_attributes(search, num_results=3)
    assert repr(fewer) == "DocidRetriever(num_results=3, beam_width=15)"
    assert len((search % 2).search(QUERY)) == 2


def test_texts_are_loaded_for_the_documents_found(pt, retriever, without_texts, folder):
    module = adapter("pyterrier")
    found = (module.DocidRetriever(retriever, 5) >> module.TextLoader(retriever)).search(QUERY)
    assert {"title", "text", "lang", "year", "weight"} < set(found.columns)
    for row in found.to_dict("records"):
        assert row["text"] == retriever.get(row["docno"]).text
    index = module.DocidIndex(folder)
    loaded = (index.retriever(5) >> pt.text.get_text(index, ["text"])).search(QUERY)
    assert loaded["text"].tolist() == found["text"].tolist()
    assert (index.retriever(where="year > 3000") >> index.text_loader()).search(QUERY).empty
    with pytest.raises(ValueError, match=r"no column 'text', it has title; `dsi update --texts` puts texts into it"):
        module.TextLoader(without_texts, ["title", "text"])
    with pytest.raises(TypeError, match="fields must be a list of columns or one, got 3"):
        module.TextLoader(retriever, 3)
    with pytest.raises(ValueError, match="docno names the doc_id 'x', which is not in the index"):
        module.TextLoader(retriever)([{"docno": "x"}])
    with pytest.raises(ValueError, match="This index has no lexical part"):
        module.LexicalRetriever(without_texts)


def test_an_experiment_measures_what_eval_measures(pt, retriever):
    import pandas as pd

    module, doc_ids = adapter("pyterrier"), list(retriever.snapshot.documents.rows)
    queries = {f"{doc_id}.1": " ".join(retriever.get(doc_id).text.split()[3:7]) for doc_id in doc_ids}
    qrels = {query_id: {query_id[:-2]: 1} for query_id in queries}
    table = pt.Experiment(
        [module.DocidRetriever(retriever), module.LexicalRetriever(retriever)],
        pd.DataFrame({"qid": queries.keys(), "query": queries.values()}),
        pd.DataFrame([(q, d, 1) for q, own in qrels.items() for d in own], columns=["qid", "docno", "label"]),
        [pt.measures.RR @ 10, pt.measures.nDCG @ 10],
    )
    assert table["name"].tolist() == ["DocidRetriever(num_results=10)", "LexicalRetriever(num_results=10)"]
    for row, run in enumerate((retriever.run(queries, 10), retriever.snapshot.lexical.run(queries, 10))):
        for measure, values in evaluate(run, qrels, ["RR@10", "nDCG@10"]).items():
            assert table[measure][row] == pytest.approx(mean(values))


# LangChain.


def standard_tests():
    try:
        from langchain_tests.integration_tests import RetrieversIntegrationTests
    except ModuleNotFoundError:
        return []
    return sorted(name for name in dir(RetrieversIntegrationTests) if name.startswith("test_"))


@pytest.mark.parametrize("name", standard_tests())
def test_langchains_own_tests_pass(name, retriever):
    from langchain_tests.integration_tests import RetrieversIntegrationTests

    class Standard(RetrieversIntegrationTests):
        retriever_constructor = adapter("langchain").DocidRetriever
        retriever_constructor_params = {"retriever": retriever}  # noqa: RUF012
        retriever_query_example = QUERY

    test, given = getattr(Standard(), name), adapter("langchain").DocidRetriever(retriever)
    result = test(given) if "retriever" in inspect.signature(test).parameters else test()
    if inspect.iscoroutine(result):
        asyncio.run(result)


def test_langchain_documents_hold_text_metadata_and_rank(retriever, without_texts, folder):
    module = adapter("langchain")
    found = module.DocidRetriever(str(folder), k=3, where="lang = 'en'").invoke(QUERY)
    hits = retriever.search(QUERY, k=3, where="lang = 'en'")
    for document, hit in zip(found, hits, strict=True):
        known = retriever.get(hit.doc_id)
        assert (document.id, document.page_content) == (hit.doc_id, known.text)
        assert document.metadata == {
            **known.metadata, "doc_id": hit.doc_id, "title": hit.title, "rank": hit.rank,
            "score": pytest.approx(hit.score, abs=1e-5),
        }  # fmt: skip
    assert [document.page_content for document in module.DocidRetriever(without_texts, 3).invoke(QUERY)] == [
        hit.title for hit in without_texts.search(QUERY, k=3)
    ]


@pytest.mark.usefixtures("tiny_default")
def test_langchain_keeps_a_documents_own_rank_and_score():
    own = {"rank": 3, "score": 0.5}
    index = dsi.index(
        [{"id": "a", "text": "Neon glows.", **own}, {"id": "b", "text": "Bees dance.", **own}], device="cpu"
    )
    (found,) = adapter("langchain").DocidRetriever(index, 1).invoke("gas that glows")
    assert (found.metadata["rank"], found.metadata["metadata.rank"], found.metadata["metadata.score"]) == (1, 3, 0.5)


def test_options_of_a_langchain_call_go_before_those_of_the_retriever(retriever):
    search = adapter("langchain").DocidRetriever(retriever, k=5, lexical_weight=0.5, where="year > 2000", tags=["t"])
    assert (search.k, search.options, search.tags) == (5, {"lexical_weight": 0.5, "where": "year > 2000"}, ["t"])
    hits = retriever.search(QUERY, k=2, lexical_weight=0.5, where="lang = 'de'")
    calls = [
        search.invoke(QUERY, k=2, where="lang = 'de'"),
        asyncio.run(search.ainvoke(QUERY, k=2, where="lang = 'de'")),
        search.batch([QUERY], k=2, where="lang = 'de'")[0],
        search.bind(k=2, where="lang = 'de'").invoke(QUERY),
    ]
    for found in calls:
        assert [document.id for document in found] == [hit.doc_id for hit in hits]
    with pytest.raises(TypeError, match=r"search\(\) has no option 'deny_'; did you mean 'deny'"):
        search.invoke(QUERY, deny_=[])


def test_a_langchain_batch_has_a_callback_for_each_query(retriever):
    from langchain_core.callbacks import BaseCallbackHandler

    started, ended = [], []

    class Listener(BaseCallbackHandler):
        def on_retriever_start(self, serialized, query, **rest):
            started.append(query)

        def on_retriever_end(self, documents, **rest):
            ended.append([document.id for document in documents])

    search = adapter("langchain").DocidRetriever(retriever, k=3)
    alone = [[document.id for document in search.invoke(query)] for query in QUERIES]
    for run in (search.batch, lambda *given: asyncio.run(search.abatch(*given))):
        found = run(QUERIES, {"callbacks": [Listener()]})
        assert [[document.id for document in own] for own in found] == alone
    assert sorted(started) == sorted(QUERIES * 2)
    assert sorted(ended) == sorted(alone * 2)


def test_langchain_can_configure_the_number_of_documents(retriever):
    from langchain_core.runnables import ConfigurableField

    search = adapter("langchain").DocidRetriever(retriever, k=5, where="year > 2000")
    configurable = search.configurable_fields(k=ConfigurableField(id="k"))
    found = configurable.invoke(QUERY, config={"configurable": {"k": 2}})
    assert [document.id for document in found] == [
        hit.doc_id for hit in retriever.search(QUERY, 2, where="year > 2000")
    ]


# LlamaIndex.


def test_llama_index_nodes_hold_text_metadata_and_score(retriever, without_texts, folder):
    module = adapter("llama_index")
    search = module.DocidRetriever(folder, similarity_top_k=3, where="lang = 'en'")
    hits = retriever.search(QUERY, k=3, where="lang = 'en'")
    for found in (search.retrieve(QUERY), asyncio.run(search.aretrieve(QUERY))):
        for node, hit in zip(found, hits, strict=True):
            known = retriever.get(hit.doc_id)
            assert (node.node_id, node.text, node.metadata) == (
                hit.doc_id, known.text, {**known.metadata, "title": hit.title, "doc_id": hit.doc_id},
            )  # fmt: skip
            assert node.score == pytest.approx(hit.score, abs=1e-5)
    assert [node.text for node in module.DocidRetriever(without_texts, 3).retrieve(QUERY)] == [
        hit.title for hit in without_texts.search(QUERY, k=3)
    ]


CASES = [
    ("lang", value, operator) for value in ("en", "o'k", "zz") for operator in ("==", "!=", ">", ">=", "<", "<=")
] + [
    *(("year", value, operator) for value in (2005, -3) for operator in ("==", "!=", ">", ">=", "<", "<=")),
    *(("weight", value, operator) for value in (0.5, -1e-7) for operator in ("==", "!=", ">", "<=")),
    *(("lang", value, operator) for value in (["en", "o'k"], ["zz"], []) for operator in ("in", "nin")),
    *(("year", value, operator) for value in ([2005, -3], []) for operator in ("in", "nin")),
]


def agreed(retriever, filters):
    """The rows that a filter lets through, here and in LlamaIndex's own stores."""
    from llama_index.core.vector_stores.utils import build_metadata_filter_fn

    known = {doc_id: retriever.get(doc_id).metadata for doc_id in retriever.snapshot.documents.rows}
    expected = list(map(build_metadata_filter_fn(known.__getitem__, filters), known))
    return adapter("llama_index").mask_of(filters, retriever.snapshot.documents).tolist(), expected


def test_llama_index_filters_let_through_what_its_own_stores_do(retriever):
    adapter("llama_index")
    from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

    singles = [MetadataFilter(key=key, value=value, operator=operator) for key, value, operator in CASES]
    sizes = set()
    for each in singles:
        found, expected = agreed(retriever, MetadataFilters(filters=[each]))
        assert found == expected, each
        sizes.add(sum(found))
    assert {0, 40} < sizes
    for condition in ("and", "or", "not"):
        for first, second in zip(singles, singles[7:], strict=False):
            found, expected = agreed(retriever, MetadataFilters(filters=[first, second], condition=condition))
            assert found == expected, (first, condition, second)


def test_llama_index_filters_of_lists_and_parts_of_texts():
    from tests.support.tables_of import table_of

    module = adapter("llama_index")
    from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
    from llama_index.core.vector_stores.utils import build_metadata_filter_fn

    columns = {
        "readers": [["anna", "bert"], ["bert"], [], None, ["joanna"]], "share": ["50%", "50 a_b", "", None, "x"],
        "year": [1, 2, None, 4, 5],
    }  # fmt: skip
    documents = table_of(columns)
    known = [{name: values[row] for name, values in columns.items() if values[row] is not None} for row in range(5)]
    cases = [
        ("readers", "anna", "contains"), ("readers", ["anna", "joanna"], "any"), ("readers", ["anna", "bert"], "all"),
        ("readers", [], "any"), ("readers", [], "all"), ("readers", None, "is_empty"), ("share", "0%", "text_match"),
        ("share", "a_b", "text_match"), ("share", "A_B", "text_match_insensitive"), ("share", None, "is_empty"),
        ("year", None, "is_empty"), ("year", 2, "!="), ("year", 2, "=="), ("year", [1, 2], "nin"),
    ]  # fmt: skip
    singles = [MetadataFilter(key=key, value=value, operator=operator) for key, value, operator in cases]
    several = [MetadataFilters(filters=[each], condition=word) for each in singles for word in ("and", "not")]
    several += [
        MetadataFilters(filters=list(pair), condition="not") for pair in zip(singles, singles[5:], strict=False)
    ]
    for filters in several:
        expected = list(map(build_metadata_filter_fn(lambda row: known[int(row)], filters), map(str, range(5))))
        assert module.mask_of(filters, documents).tolist() == expected, filters
    twice = MetadataFilters(filters=[MetadataFilters(filters=[singles[0]], condition="not")], condition="not")
    assert module.mask_of(twice, documents).tolist() == [True, False, False, False, False]


def test_llama_index_filters_nest_and_act_in_the_search(retriever):
    module = adapter("llama_index")
    from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

    english = MetadataFilter(key="lang", value="en")
    years = [MetadataFilter(key="year", value=value) for value in (1990, 2020)]
    filters = MetadataFilters(filters=[english, MetadataFilters(filters=years, condition="or")])
    search = module.DocidRetriever(retriever, 5, filters)
    hits = retriever.search(QUERY, k=5, where="lang = 'en' and year in (1990, 2020)")
    assert len(hits) > 1
    assert [node.node_id for node in search.retrieve(QUERY)] == [hit.doc_id for hit in hits]
    changed = copy(retriever)
    late = module.DocidRetriever(changed, 50, filters)
    changed.add([{"id": "late", "text": "A long river.", "lang": "en", "year": 1990}])
    assert "late" in [node.node_id for node in late.retrieve(QUERY)]
    assert len(module.DocidRetriever(retriever, 5, MetadataFilters(filters=[])).retrieve(QUERY)) == 5


def test_llama_index_filters_that_no_index_can_search_by_are_refused(retriever):
    module = adapter("llama_index")
    from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

    def refuse(message, *filters, condition="and", error=ValueError, **options):
        given = MetadataFilters(filters=list(filters), condition=condition)
        with pytest.raises(error) as raised:
            module.DocidRetriever(retriever, 5, given, **options)
        assert message in str(raised.value)

    one = MetadataFilter(key="lang", value="en")
    refuse("contains needs a column of lists, lang is a", MetadataFilter(key="lang", value="e", operator="contains"))
    refuse("'lang': any takes a list of values, got 'e'", MetadataFilter(key="lang", value="e", operator="any"))
    refuse("'lang': text_match takes a text, got 3", MetadataFilter(key="lang", value=3, operator="text_match"))
    refuse("'lang': in takes a list of values, got 'en'", MetadataFilter(key="lang", value="en", operator="in"))
    refuse("'lang': == takes one value, got ['en']", MetadataFilter(key="lang", value=["en"]))
    refuse("'lang': == takes one value, got None", MetadataFilter(key="lang", value=None))
    refuse("no such column: lnag; the nearest is lang", MetadataFilter(key="lnag", value="en"))
    refuse("year is a column of integer values, got the text '2005'", MetadataFilter(key="year", value="2005"))
    refuse("expected a value", MetadataFilter(key="weight", value=float("inf")))
    refuse("MetadataFilters within others must hold at least one filter", one, MetadataFilters(filters=[]))
    refuse("filters and where are two ways to say the same; give one of them.", one, where="year > 2000")
    with pytest.raises(TypeError, match="filters must be MetadataFilters of LlamaIndex, got 'lang'"):
        module.DocidRetriever(retriever, 5, "lang")


def test_the_documents_of_all_hits_are_looked_up_at_once(retriever, monkeypatch):
    lookups = []
    find_rows = DocumentTable.find
    monkeypatch.setattr(DocumentTable, "find", lambda self, doc_ids: lookups.append(1) or find_rows(self, doc_ids))
    answers = list(retrieval.find(retriever, QUERIES, 5, {}))
    assert lookups == [1]
    for query, answer in zip(QUERIES, answers, strict=True):
        hits = retriever.search(query, k=5)
        assert (
            [hit.doc_id for hit, _ in answer] == [document.doc_id for _, document in answer] == [h.doc_id for h in hits]
        )
        assert [document for _, document in answer] == [retriever.get(hit.doc_id) for hit in hits]
    assert retriever.get([]) == []
    with pytest.raises(ValueError, match="get names the doc_id 'nothing', which is not in the index"):
        retriever.get([retriever.snapshot.documents.column("doc_id")[0], "nothing"])


def test_iterators_of_doc_ids_filter_every_search(retriever):
    denied = [hit.doc_id for hit in retriever.search("noble gas", k=3)]
    langchain = pytest.importorskip("dsi.integrations.langchain")
    found = langchain.DocidRetriever(retriever, deny=iter(denied))
    for _ in range(2):
        assert not {document.metadata["doc_id"] for document in found.invoke("noble gas")} & set(denied)
    only = langchain.DocidRetriever(retriever, allow=(doc_id for doc_id in denied))
    for _ in range(2):
        assert {document.metadata["doc_id"] for document in only.invoke("noble gas")} == set(denied)
