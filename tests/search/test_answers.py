"""Several passages of a document, and evidence within a budget: as every piece and sentence scored one by one gives them."""

import itertools
import json
import pickle
import random
import re
from copy import copy

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.token_vectors import decode
from dsi.docids.words.analyzer import Analyzer
from dsi.docids.words.sentences import sentences
from dsi.search.engine import Engine
from dsi.search.hits import Piece
from dsi.search.passages import ScoredPiece, ScoredText, _apart
from tests.support.small import MINIPEDIA
from tests.support.small_index import small_index

RECORDS = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:90]]
QUERIES = [
    "which gas glows in signs",
    "a plant that catches insects",
    "the capital of a country in africa, and its river",
]
WEIGHTS = {"lexical_weight": 0.3, "token_weight": 0.5}


@pytest.fixture(scope="module")
def index(sentence_bert_folder, tmp_path_factory):
    """Long documents of six articles each, in up to six pieces, and short ones of one; their texts end with a blank line."""
    articles = [*(RECORDS[at : at + 6] for at in range(0, 60, 6)), *([each] for each in RECORDS[60:])]
    texts = ["\n\n".join(each["text"] for each in own) + "\n" for own in articles]
    documents = [
        {"doc_id": f"d{at}", "title": own[0]["title"], "text": text, "even": at % 2 == 0}
        for at, (own, text) in enumerate(zip(articles, texts, strict=True))
    ]
    folder = tmp_path_factory.mktemp("answers") / "index"
    settings = {"encoder": {"piece_length": 80, "document_length": 120}, "docids": {"pieces": 6, "branching": 4}}
    config = dsi.Config().without_training().with_changes(settings)
    dsi.index(documents, folder, config=config, encoder=str(sentence_bert_folder), device="cpu")
    return dsi.load(folder, device="cpu")


def products(index, query, place):
    """[tokens of a place, tokens of a query] products, decoded one by one."""
    tokens = index.snapshot.tree.tokens
    (batch,) = index.encode_queries([query]).batches
    asked = tokens.project(batch.word_states(0))
    codes = tokens.gather(np.array([place])).codes
    vectors, norms = decode(codes, tokens.dim, tokens.bits, np.empty((len(codes), tokens.dim), dtype=np.float32))
    return (vectors / norms[:, None]) @ asked.T


def words_of(index, query, text):
    """What the words of a query are worth in a text of average length."""
    factors, found = index.snapshot.lexical.term_factors(query), Analyzer(index.snapshot.lexical.language).terms(text)
    return sum(
        factor * (tf := found.count(term)) / (tf + index.snapshot.lexical.k1) for term, factor in factors.items()
    )


def pieces_of(index, query, doc_id):
    """(score, start, end, place) of each piece of a document."""
    tree, document = index.snapshot.tree, index.get(doc_id)
    (batch,) = index.encode_queries([query]).batches
    places = np.flatnonzero(tree.doc_rows == index.snapshot.documents.rows[doc_id])
    dense = [float(np.asarray(tree.embeddings[place]) @ batch.embeddings[0]) for place in places]
    scored = []
    for value, place in zip(dense, places, strict=True):
        start, end = tree.spans[place].tolist() if len(places) > 1 else (0, len(document.text))
        factor = 2 * max(WEIGHTS["lexical_weight"], max(dense) - min(dense))
        value += factor * words_of(index, query, document.text[start:end])
        value -= tree.piece_cost * np.log2(len(places))
        late = products(index, query, place).max(axis=0).mean()
        scored.append((value + WEIGHTS["token_weight"] * float(late), start, end, int(place)))
    return scored


def passages_of(index, query, hit, count):
    """(start, end, score) of the passages of a hit: each character belongs to the best chosen piece that has it."""
    best = sorted(pieces_of(index, query, hit.doc_id), key=lambda piece: -piece[0])[:count]
    owner = {}
    for number, (_, start, end, _) in enumerate(best):
        for at in range(start, end):
            owner.setdefault(at, number)
    shown = []
    for number, (score, *_) in enumerate(best):
        own = [at for at, who in owner.items() if who == number and not hit.text[at].isspace()]
        shown.append((min(own), max(own) + 1, hit.score + score - best[0][0]))
    return sorted(shown)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    ("count", "options"),
    [(2, {}), (6, {}), (2, {"method": "exact"}), (6, {"where": "even = true"}), (2, {"deny": ["d1", "d4"]})],
    ids=str,
)
def test_passages_are_the_best_pieces_in_their_order_none_of_which_overlap(index, query, count, options):
    hits = index.search(query, k=12, passages=count, **WEIGHTS, **options)
    assert any(len(hit.passages) == count for hit in hits)
    for hit, same in zip(hits, index.search(query, k=12, **WEIGHTS, **options), strict=True):
        assert (hit.doc_id, hit.score) == (same.doc_id, same.score)
        expected = passages_of(index, query, hit, count)
        assert [own[1:3] for own in hit.passages] == [own[:2] for own in expected]
        np.testing.assert_allclose([own.score for own in hit.passages], [own[2] for own in expected], atol=1e-4)
        assert all(one.end <= other.start for one, other in itertools.pairwise(hit.passages))
        for own in hit.passages:
            assert (own.doc_id, own.title, own.text) == (hit.doc_id, hit.title, hit.text[own.start : own.end])
        assert max(own.score for own in hit.passages) == pytest.approx(hit.score)
        assert hit.passage.strip() in [own.text for own in hit.passages]


def test_one_passage_is_shown_unless_more_are_asked_for(index):
    for hit, same in zip(index.search(QUERIES[0], k=9), index.search(QUERIES[0], k=9, passages=1), strict=True):
        assert hit == same
        ((_, start, end, score, _, text, location),) = hit.passages
        assert (start, end) == (hit.text.index(text), hit.text.index(text) + len(text))
        assert (text, score, location) == (hit.passage.strip(), hit.score, hit.location)
        assert "passages" not in hit.as_dict()


def test_no_query_is_encoded_or_searched_for_again(index, monkeypatch):
    counts = dict.fromkeys(["forward", "search"], 0)
    for owner, name in ((TextEncoder, "forward"), (Engine, "search")):
        own = getattr(owner, name)

        def counted(*given, name=name, own=own, **named):
            counts[name] += 1
            return own(*given, **named)

        monkeypatch.setattr(owner, name, counted)
    index.search(QUERIES[0], passages=5)
    assert counts == {"forward": 1, "search": 1}
    index.evidence(QUERIES[0], tokens=200)
    assert counts == {"forward": 2, "search": 2}


def test_passages_are_printed_and_written(index, capsys):
    hits = index.search(QUERIES[0], k=3, passages=2)
    assert len(str(hits).splitlines()) == 1 + len(hits) + sum(len(hit.passages) for hit in hits)
    assert hits._repr_html_().count("<br>") == sum(len(hit.passages) for hit in hits) + len(hits)
    assert pickle.loads(pickle.dumps(hits))[0].passages == hits[0].passages
    folder = str(index._on_disk.folder)
    main(["search", folder, QUERIES[0], "-k", "3", "--passages", "2", "--json", "--device", "cpu"])
    shown = json.loads(capsys.readouterr().out)["hits"]
    for hit, own in zip(hits, shown, strict=True):
        found = [(each["start"], each["end"], each["text"]) for each in own["passages"]]
        assert found == [(each.start, each.end, each.text) for each in hit.passages]


def test_passages_of_files_have_lines(sentence_bert_folder, tmp_path):
    pytest.importorskip("dsi.files")
    (tmp_path / "files").mkdir()
    text = "\n".join(each["text"] for each in RECORDS[:12])
    (tmp_path / "files" / "notes.txt").write_text(text, encoding="utf-8")
    config = dsi.Config().without_training().with_changes({"encoder": {"piece_length": 60}})
    own = dsi.index(tmp_path / "files", config=config, encoder=str(sentence_bert_folder), device="cpu")
    (hit,) = own.search(QUERIES[0], passages=3)
    lines = text.split("\n")
    for passage in [*hit.passages, *own.evidence(QUERIES[0], tokens=150)]:
        first, last = passage.location.lines
        assert passage.text in "\n".join(lines[first - 1 : last])
    assert len(hit.passages) == 3
    for passages in (1, 3):
        printed = str(own.search(QUERIES[0], passages=passages)).split("\n")
        places = [number for number, line in enumerate(printed) if "notes.txt:" in line]
        assert len(places) == passages
        for number in places:  # the line of what is shown, not of where its passage begins
            line = int(printed[number].split()[0].rpartition(":")[2])
            shown = printed[number + 1].strip().strip("… ")[:30]
            assert shown in " ".join(lines[line - 1 :])
            assert shown not in " ".join(lines[line:])


def test_late_interaction_reads_some_pieces_of_a_long_text(index, monkeypatch):
    query, read = QUERIES[0], list[int]()
    own = type(index.snapshot.tree.tokens).late_interaction
    monkeypatch.setattr(
        "dsi.docids.token_vectors.TokenVectors.late_interaction",
        lambda self, queries, places: read.append(sum(map(len, places))) or own(self, queries, places),
    )
    monkeypatch.setattr("dsi.search.passages._SPARE", 1)
    (hit,) = index.search(query, passages=2, allow=["d0"], **WEIGHTS)
    assert read[-1] == 3 < len(pieces_of(index, query, "d0"))
    assert len(hit.passages) == 2


# Evidence.


def counted(index, texts):
    return sum(len(own) for own in index.snapshot.encoder.token_offsets(texts, 10**6))


def units(text):
    """Sentences, of which those of fewer than 150 bytes stand with the next."""
    found, start = [], 0
    for _, end in sentences(text, 0, len(text)):
        if len(text[start:end].strip().encode()) >= 150 or end == len(text):
            found.append((start, end))
            start = end
    return found


def cosine(index, *places):
    """Of the vectors of two pieces, less the mean of all."""
    tree = index.snapshot.tree
    one, other = (np.asarray(tree.embeddings[place]) - np.asarray(tree.centroids[0]) for place in places)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def evidence_of(index, query, budget, **options):
    """{doc_id: characters} of evidence: every sentence of every piece scored, and the best ones taken while there is room."""
    best, hits = {}, {hit.doc_id: hit for hit in index.search(query, k=20, **WEIGHTS, **options)}
    pieces = [(*piece, doc_id) for doc_id in hits for piece in pieces_of(index, query, doc_id)]
    for score, start, end, place, doc_id in sorted(pieces, key=lambda piece: -piece[0])[:40]:
        title, text = hits[doc_id].title, hits[doc_id].text
        spans = index.snapshot.encoder.spans(f"{title} {text[start:end]}".strip(), "document")
        table = products(index, query, place)
        assert len(spans) == len(table)
        for first, last in units(text):
            if first >= end or last <= start:
                continue
            rows = [
                row
                for span, row in zip(spans, table, strict=True)
                if not span.is_special
                and first <= span.start - len(title) - 1 + start < last
                and span.start > len(title)
            ]
            late = np.max(rows, axis=0).mean() if rows else 0.0
            words = words_of(index, query, text[first:last])
            total = score + 2 * (WEIGHTS["lexical_weight"] * words + WEIGHTS["token_weight"] * float(late))
            key = doc_id, text, first, last
            best[key] = max((total, place), best.get(key, (total, place)), key=lambda own: own[0])
    taken, left, known, numbers, read = {}, budget, set(), set(), set()
    for doc_id, text, first, last in sorted(best, key=lambda key: -best[key][0]):
        letters = re.sub(r"[\W_]", "", text[first:last].casefold())
        runs = {letters[at : at + 8] for at in range(max(1, len(letters) - 7))}
        count = counted(index, [text[first:last]])
        _, place = best[doc_id, text, first, last]
        is_copy = any(cosine(index, place, other) > 0.95 for other in read if other != place)
        digits = set(re.findall("[0-9]+", text[first:last]))
        if (
            count <= left
            and sum(run in known for run in runs) < 0.75 * len(runs)
            and not (is_copy and digits <= numbers)
        ):
            left, known, numbers, read = left - count, known | runs, numbers | digits, read | {place}
            own = {at for at in range(first, last) if not text[at].isspace()}
            taken[doc_id] = taken.get(doc_id, set()) | own
    return taken


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    ("budget", "options"),
    [(80, {}), (250, {"where": "even = true"}), (700, {}), (700, {"deny": ["d1", "d4"]})],
    ids=str,
)
def test_evidence_is_the_best_sentences_that_fit(index, query, budget, options):
    found = index.evidence(query, tokens=budget, **WEIGHTS, **options)
    shown = {}
    for own in found:
        text = index.get(own.doc_id).text
        assert own.text == text[own.start : own.end]
        shown[own.doc_id] = shown.get(own.doc_id, set()) | {
            at for at in range(own.start, own.end) if not text[at].isspace()
        }
    assert shown == evidence_of(index, query, budget, **options)
    assert found.tokens == counted(index, [own.text for own in found]) <= budget
    assert [own.score for own in found] == sorted((own.score for own in found), reverse=True)
    assert budget < 700 or len({own.doc_id for own in found}) > 1


def test_evidence_ends_with_sentences_and_is_written_for_a_prompt(index):
    found = index.evidence(QUERIES[0], tokens=150)
    for own in found:
        text = index.get(own.doc_id).text
        assert own.start == 0 or re.search(r"[.!?\n]\s*$", text[: own.start])
        assert own.text[-1] in '.!?"”'
    first = found[0]
    assert str(found).startswith(
        f"[1] {first.title} ({first.doc_id}, characters {first.start} to {first.end})\n{first.text}\n\n[2] "
    )


def test_evidence_does_not_repeat_itself(index, sentence_bert_folder):
    text = "Neon is a noble gas that glows reddish orange in advertising signs, when a current of electricity flows through it."
    texts = [text, text.upper(), text.replace(" in ", "  within ") + " It is rare.", "Helium is lighter than air. " * 5]
    own = dsi.index(texts, config=index_config(), encoder=str(sentence_bert_folder), device="cpu")
    found = own.evidence("which gas glows in signs", tokens=400)
    assert sum("neon" in each.text.casefold() for each in found) == 1
    assert any("Helium" in each.text for each in found)


def test_evidence_leaves_out_what_a_vector_says_twice_unless_it_has_another_number(index, sentence_bert_folder):
    texts = [
        "Neon is a noble gas that glows reddish orange, in signs since 1923.",
        "Das Edelgas Neon leuchtet rot, in Reklamen seit 1923.",
        "Le néon est un gaz rare qui brille en rouge, dans les enseignes depuis 1984.",
        *(own["text"] for own in RECORDS[:40]),
    ]
    vectors = np.random.default_rng(0).normal(size=(43, index.snapshot.encoder.embedding_dim)).astype(np.float32)
    vectors[1:3] = vectors[0] + 0.01 * vectors[1:3]
    for same, count in ((3, 2), (1, 3)):
        vectors[same:3] = vectors[20:][: 3 - same]
        own = dsi.index(
            texts, config=index_config(), encoder=str(sentence_bert_folder), embeddings=vectors, device="cpu"
        )
        found = own.evidence("which gas glows in signs", tokens=600, allow=["0", "1", "2"])
        assert len({own.doc_id for own in found} & {"0", "1"}) == count - 1
        assert "2" in {own.doc_id for own in found}


def test_evidence_of_texts_without_sentences_is_of_pieces(sentence_bert_folder):
    words = [word.strip(".,") for record in RECORDS for word in record["text"].split()]
    own = dsi.index(
        [" ".join(words[:3000]), " ".join(words[3000:])],
        config=index_config(),
        encoder=str(sentence_bert_folder),
        device="cpu",
    )
    found = own.evidence(QUERIES[0], tokens=600)
    assert found
    assert found.tokens == counted(own, [each.text for each in found]) <= 600
    assert all(len(each.text) < 5000 for each in found)
    for one, other in itertools.combinations(found, 2):  # parts of a sentence that share characters are one passage
        assert one.doc_id != other.doc_id or one.end < other.start or other.end < one.start


def test_pieces_that_share_characters_leave_them_to_the_better_one():
    chance = random.Random(5)
    for _ in range(300):
        text = "".join(chance.choice("ab .\n") for _ in range(60))
        ends = [sorted(chance.sample(range(61), 2)) for _ in range(chance.randrange(1, 7))]
        pieces = [ScoredPiece(-float(number), *own, number) for number, own in enumerate(ends)]
        count = chance.randrange(1, 6)
        shown = _apart(pieces, ScoredText(0, text, 3.0), count)
        assert len(shown) <= count
        assert all(one.end <= other.start for one, other in itertools.pairwise(shown))
        for start, end, score in shown:
            number = int(3 - score)
            assert ends[number][0] <= start < end <= ends[number][1]
            assert any(map(str.isalnum, text[start:end]))
        assert {*shown} <= {
            *_apart(pieces, ScoredText(0, text, 3.0), count + 1)
        }  # no worse piece takes anything of a better one
        if any(map(str.isalnum, text[slice(*ends[0])])):
            assert Piece(*ends[0], 3.0) in shown


@pytest.mark.parametrize("settings", [{"docids": {"pieces": 1}}, {"text_megabytes": 0}], ids=["one piece", "no texts"])
def test_documents_of_one_piece_or_without_texts_have_places(sentence_bert_folder, settings):
    texts = [" ".join(each["text"] for each in RECORDS[at : at + 6]) for at in range(0, 60, 6)]
    config = dsi.Config().without_training().with_changes({"encoder": {"piece_length": 80}} | settings)
    own = dsi.index(texts, config=config, encoder=str(sentence_bert_folder), device="cpu")
    has_texts = "docids" in settings
    for query in (QUERIES[0], own.encode_queries([QUERIES[0]])):
        for options in ({}, {"method": "exact"}, {"allow": ["2", "3"]}):
            found = own.search(query, passages=3, **options)
            for hit in found if isinstance(query, str) else found[0]:
                assert len(hit.passages) == (1 if has_texts else 3)
                assert all(one.end <= other.start for one, other in itertools.pairwise(hit.passages))
                for passage in hit.passages:
                    assert passage.text == (hit.text[passage.start : passage.end] if has_texts else None)
                assert max(passage.score for passage in hit.passages) == pytest.approx(hit.score)


def test_passages_after_learning_updates_and_for_vectors_are_pieces_of_the_texts_of_now(index):
    own = copy(index)
    own.learn([(QUERIES[0], "d3"), (QUERIES[1], "d4")])
    own.remove(["d2"])
    own.add(
        [{"doc_id": "d1", "title": "New", "text": " ".join(each["text"] for each in RECORDS[60:80]), "even": True}],
        replace=True,
    )
    own.update(vectors="int8")
    vectors = own.encode_queries(QUERIES).embeddings
    for answers in (own.search(QUERIES, k=50, passages=4), own.search(embeddings=vectors, k=50, passages=4)):
        for hit in itertools.chain(*answers):
            assert hit.text == own.get(hit.doc_id).text
            assert hit.doc_id != "d2"
            assert all(each.text == hit.text[each.start : each.end] for each in hit.passages)
            assert hit.passage_span is None or len(hit.passages) > 1
            assert max(each.score for each in hit.passages) == pytest.approx(hit.score, abs=1e-4)
            assert max(hit.passages, key=lambda each: each.score).text == hit.passage.strip()


def test_calls_that_show_no_passages_refuse_them(index):
    for call in (lambda: index.evidence("gas", passages=3), lambda: index.run({"q": "gas"}, passages=3)):
        with pytest.raises(ValueError, match=r"\(\) does not use passages, as it shows none. Leave it out."):
            call()


def index_config():
    return dsi.Config().without_training().with_changes({"docids": {"branching": 2, "max_leaf_size": 2}})


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"tokens": 0}, ValueError, "tokens must be at least 1, got 0. A sentence has about 30."),
        ({"tokens": -5}, ValueError, "tokens must be at least 1, got -5."),
        ({"tokens": "many"}, ValueError, "tokens must be an integer, got 'many'."),
        ({"tokens": 2}, ValueError, r"tokens is 2, and the shortest sentence found has \d+. Ask for more tokens."),
        ({"question": " "}, ValueError, "evidence() takes a query that is not empty"),
        ({"question": ["a", "b"]}, ValueError, "must be a string|one query"),
        ({"allow": ["nowhere"]}, ValueError, "allow names the doc_id 'nowhere', which is not in the index"),
        ({"budget": 5}, TypeError, "evidence() has no option 'budget'"),
        ({"k": 0}, ValueError, "k must be at least 1, got 0"),
    ],
)
def test_bad_evidence_is_refused_in_a_line(index, given, error, message):
    given = {"question": QUERIES[0], **given}
    with pytest.raises(error, match=message.replace("()", r"\(\)")) as caught:
        index.evidence(given.pop("question"), **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("passages", "message"),
    [(0, "1 and 100, got 0"), (101, "1 and 100, got 101"), ("x", "integer, got 'x'"), (1.5, "integer, got 1.5")],
)
def test_a_wrong_number_of_passages_is_refused_in_a_line(index, passages, message):
    with pytest.raises(ValueError, match=f"passages must be .*{message}") as caught:
        index.search("gas", passages=passages)
    assert "\n" not in str(caught.value)


def test_a_filter_that_lets_nothing_through_leaves_nothing(index):
    assert list(index.evidence("gas", where="doc_id = 'nowhere'")) == []
    assert str(index.evidence("gas", allow=[])) == ""


def test_an_index_without_texts_has_places_and_no_evidence(encoder):
    own = small_index(encoder, vectors=True)
    assert all(hit.passages[0].text is None for hit in own.search("gas", passages=3))
    with pytest.raises(ValueError, match="needs texts, which this index does not keep"):
        own.evidence("gas")
