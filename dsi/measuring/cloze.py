"""Questions that documents ask: sentences that were taken out of them, as in an inverse cloze test (Lee et al. 2019).

How well they find the rest of their documents says how high a score is, without labels. Knows nothing of walks.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import datasets
import numpy as np
from datasets.table import InMemoryTable

from dsi.contrastive.readable import LEAST_SHARE
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.token_vectors import TokenCodes
from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats, Ints
from dsi.docids.words.analyzer import Analyzer
from dsi.docids.words.sentences import sentences
from dsi.search.best_scores import BestScores
from dsi.search.queries import EncodedQueries
from dsi.search.request import SearchRequest
from dsi.search.scores import read_weights
from dsi.store.retriever import Retriever, keep_best_scores
from dsi.store.updating import encoded_pieces

_FEWEST_TRIED, _MOST, _SHARE = 150, 300, 10
"""Sentences that are looked for: the fewest and the most of them, and documents for each sentence."""
_MOST_READ = 3_000
"""Documents in which they are sought, at most."""
_FEWEST = 30
"""Fewest sentences that say something."""
_PIECES = 100
"""Pieces of a document from which a sentence may come, at most."""
_WORDS = 3, 60
"""Terms of a sentence that is looked for."""
_REST = 4
"""Terms that must be left of its document, at least."""


class Hole(NamedTuple):
    """A document that a sentence was taken out of."""

    row: int
    sentence: str
    piece: str  # that held the sentence, after the title, without it
    title: str
    text: str  # the whole text without it


class Questions(NamedTuple):
    """Sentences that were taken out of documents, one each, as queries, and how these score for them without it: [pairs]."""

    encoded: EncodedQueries
    rows: Ints
    dense: Floats
    words: Floats  # by the lexical part, as shares
    tokens: TokenCodes | None  # of the pieces that held the sentences, without them


def ask(retriever: Retriever, documents: datasets.Dataset, seed: int = 0) -> Questions | None:
    """Return questions that the documents of an index without a generator ask; `seed`: of the choice of sentences.

    None if the index has no BM25, or fewer than 30 documents have two sentences that the encoder reads.
    """
    index = retriever.snapshot
    lexical = index.lexical
    if lexical is None:
        return None
    holes, first = list(find_holes(index.encoder, documents, lexical.analyzer, seed)), len(lexical.doc_ids)
    if len(holes) < _FEWEST:
        return None
    queries, rows = [hole.sentence for hole in holes], np.array([hole.row for hole in holes])
    # 1) dense
    encoded = retriever.encode_queries(queries)
    pieces, tokens = encoded_pieces(index.tree, index.encoder, [hole.piece for hole in holes])
    pairs = zip(rows.tolist(), encoded.embeddings, pieces, strict=True)
    dense = np.array([_dense_without(index.tree, *pair) for pair in pairs], dtype=np.float32)
    # 2) words
    ids = [*lexical.doc_ids, *(f"hole {number}" for number in range(len(holes)))]
    updated = lexical.update([], ids, [f"{hole.title} {hole.text}" for hole in holes])
    terms = enumerate(updated.share_terms(queries), start=first)
    added = [updated.scorer.contributions(query, np.array([row])).sum() for row, query in terms]
    return Questions(encoded, rows, dense, np.array(added, dtype=np.float32), tokens)


def best_scores(retriever: Retriever, questions: Questions) -> BestScores | None:
    """Return how the best scores of questions are distributed; each is taken out of its document, which counts without it.

    None if they are all alike.
    """
    index, config = retriever.snapshot, retriever.search_config
    tree = index.tree
    request = SearchRequest(2, config)
    # 1) the best of the other documents
    result = index.engine.search(questions.encoded, request)
    is_other = (tree.doc_rows[np.maximum(result.positions, 0)] != questions.rows[:, None]) & (result.positions >= 0)
    others = np.where(is_other, result.scores, -np.inf).max(axis=1)
    # 2) of their documents
    pairs, vectors = np.arange(len(questions.rows)), questions.dense
    if tree.tokens is not None and questions.tokens is not None and config.token_weight:
        places = np.arange(len(pairs), dtype=np.int32)
        codes = replace(tree.tokens, parts=(questions.tokens,), order=places)
        states = [query.batches[0].word_states(0) for query in questions.encoded.each()]
        late = codes.late_interaction([*map(codes.project, states)], [*pairs[:, None]])
        vectors = vectors + config.token_weight * np.concatenate(late)
    shares = np.ones(len(pairs), dtype=np.float32)
    for batch in questions.encoded.batches:
        shares[batch.numbers] = 1 if batch.shares_read is None else read_weights(batch.shares_read)
    scores = shares * vectors + config.lexical_weight * questions.words
    return BestScores.from_scores(np.maximum(scores, others), request, len(retriever))


def renew_best_scores(retriever: Retriever) -> bool:
    """Ask again if updates have changed a tenth of the documents since, and return whether; without texts nothing is known."""
    index = retriever.snapshot
    if index.best_scores is None or index.best_scores.holds:
        return False
    questions = None
    if index.documents.has_texts:
        questions = ask(retriever, datasets.Dataset(InMemoryTable(index.documents.table)))
    keep_best_scores(retriever, None if questions is None else best_scores(retriever, questions))
    return True


def _dense_without(tree: DocidTree, row: int, query: Floats, piece: Floats) -> float:
    """Return the dense score of a document one of whose pieces is replaced by what a sentence has left of it."""
    places, _ = tree.places_of(np.array([row]))
    vectors = tree.embeddings[places]  # [places, dim]
    vectors[(vectors @ piece).argmax()] = piece
    cost = 0.0 if tree.place_costs is None else float(tree.place_costs[places[0]])
    return float((vectors @ query).max()) - cost


def find_holes(encoder: TextEncoder, documents: datasets.Dataset, analyzer: Analyzer, seed: int) -> Iterator[Hole]:
    """Yield documents that a sentence that the encoder reads was taken out of, one each, at random: a tenth, 150 to 300."""
    rng = random.Random(seed)
    left = min(_MOST, max(_FEWEST_TRIED, len(documents) // _SHARE))
    for row in rng.sample(range(len(documents)), len(documents))[:_MOST_READ]:
        title, text = documents[row]["title"], documents[row]["text"]
        (cut,) = encoder.cut([title], [text], _PIECES)
        start, end = rng.choice(cut.spans)
        counts = {span: len(analyzer.terms(text[slice(*span)])) for span in sentences(text, start, end)}
        candidates = [span for span, count in counts.items() if _WORDS[0] <= count <= _WORDS[1]]
        if not candidates:
            continue
        first, last = rng.choice(candidates)
        if encoder.shares_read([text[first:last]])[0] < LEAST_SHARE:
            continue
        piece, rest = f"{title} {text[start:first]} {text[last:end]}", f"{text[:first]} {text[last:]}"
        if len(analyzer.terms(piece)) >= _REST:
            yield Hole(row, text[first:last].strip(), piece.strip(), title, rest)
            left -= 1
            if not left:
                return
