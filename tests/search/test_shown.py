"""What people see of answers: HTML in notebooks, and hits after a pickle."""

import copy
import pickle

import pytest

from tests.support.evaluated import collection, retriever  # noqa: F401 (fixtures)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda hits: pickle.loads(pickle.dumps(hits))])
def test_hits_keep_their_marks_and_what_is_proven(retriever, again):
    hits = retriever.search("noble gas", k=3, method="exact", token_weight=0.0)
    kept = again(hits)
    assert kept == hits
    assert kept.matches() == hits.matches()
    assert any(hits.matches())
    assert str(kept) == str(hits)
    assert "proven: no other scores higher" in str(kept)
    assert kept._repr_html_() == hits._repr_html_()
    assert "<mark>" in again(retriever.search("neon", k=3))._repr_html_()
    assert again(again(hits)).matches() == hits.matches()
    with pytest.raises(ValueError, match="do not know their search any more"):
        kept.explain(hits[0].doc_id)


def test_explanations_are_html_in_notebooks(retriever):
    explanation = retriever.explain("<noble> gas", k=2)
    shown = explanation._repr_html_()
    assert shown.startswith("<pre>")
    assert shown.count("<b>") == 2
    assert "&lt;noble&gt;" in shown
    doc_id = retriever.snapshot.documents.column("doc_id")[0]
    assert retriever.search("<noble>").explain(doc_id)._repr_html_().count("<b>") == 1
