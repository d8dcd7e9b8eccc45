"""Evidence for a question within a budget of tokens: the sentences of several documents that tell most, without repeats.

A search finds documents, and their best pieces are cut at the ends of sentences. A sentence scores as its piece does, and twice
what its own words and tokens would add to a document's score. Those with the highest scores are taken until the budget is used;
those that stand together are one passage. Nothing is encoded but the question.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.files.checks import plain
from dsi.docids.types import Bools, Floats, Ints
from dsi.docids.words.sentences import joined_sentences
from dsi.search.hits import Evidence, Hits, Passage
from dsi.search.passages import ScoredPiece, ScoredText, Words, scored_pieces
from dsi.search.queries import encoded_query
from dsi.search.request import SearchOptions
from dsi.search.scores import DocumentScores
from dsi.store.snapshot import Snapshot

_OF_A_DOCUMENT, _PIECES, _PER_PIECE = 20, 40, 25
"""Pieces of a document, and of all, that are cut into sentences; of all one for each 25 tokens, if that is more."""
_LEAST, _MOST = 150, 1000
"""Bytes of a sentence that stands alone: headings and "Mr." stand with the next. Characters of one that is not cut."""
_SENTENCES = 2
"""How much more words and tokens count among the sentences of a piece than among documents (docs/experiments/evidence.md)."""
_SHINGLE, _KNOWN, _SAME = 8, 0.75, 0.95
"""A sentence repeats others if that share of its runs of that many letters stands in them; or if the vector of its piece, less
the mean of all, has that cosine with that of another's piece, and it has no other number: vectors hardly tell these apart. No
two paragraphs of SQuAD have more than .944; five of a hundred with two words changed have less than .973."""
_LONGEST = 10**6


class _Sentence(NamedTuple):
    """A candidate: the number of its document, its ends in the text, its score, and the docid position of its piece."""

    document: int
    start: int
    end: int
    score: float
    place: int


def evidence(index: Snapshot, question: str, tokens: int, k: int, options: SearchOptions) -> Evidence:
    """Return the passages that best answer a question; see `Retriever.evidence`."""
    if (tokens := plain(int, tokens, "tokens")) < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}. A sentence has about 30.")
    if not index.documents.has_texts:
        raise ValueError(
            "evidence() needs texts, which this index does not keep. Run dsi update INDEX --texts COLLECTION."
        )
    encoded = encoded_query(index.encoder, question, "evidence")
    encoded.check_usable()
    request, tree, lexical = index.request("evidence", k, options), index.tree, index.lexical
    result = index.engine.search(encoded, request)
    (hits,) = index.hits_of(result)
    scores = DocumentScores.from_request(tree, lexical, encoded.batches[0], request)
    words = Words(lexical, request.config.lexical_weight, encoded.texts[0])
    found = [ScoredText(at, hit.text, hit.score) for at, hit in zip(result.positions[0].tolist(), hits, strict=False)]
    ranked = sorted(_sentences(index.encoder, scores, words, hits, found, tokens), key=lambda one: (-one.score, one))
    chosen = _chosen(index, hits, ranked, tokens)
    passages, count = _within_budget(index.encoder, hits, chosen, tokens)
    return Evidence(passages, encoded.texts[0], count, hits.coverage, hits.missing)


def _sentences(
    encoder: TextEncoder, scores: DocumentScores, words: Words, hits: Hits, found: Sequence[ScoredText], tokens: int
) -> list[_Sentence]:
    """Return the sentences of the best pieces of documents; one that several pieces have counts by the best of them."""
    documents = scored_pieces(scores, words, found, _OF_A_DOCUMENT) if found else []
    pieces = sorted(
        ((piece, number) for number, pieces in enumerate(documents) for piece in pieces),
        key=lambda pair: -pair[0].score,
    )
    cuts, best = dict[int, list[tuple[int, int]]](), dict[tuple[int, int, int], _Sentence]()
    for piece, number in pieces[: max(_PIECES, tokens // _PER_PIECE)]:
        hit, text = hits[number], hits[number].text or ""
        if number not in cuts:
            cuts[number] = joined_sentences(text, _LEAST)
        ends = np.array([*_within(cuts[number], piece)], dtype=np.int64).reshape(-1, 2)
        added = words.weight * words.shares(text, ends) + _by_tokens(encoder, scores, piece, hit.title, text, ends)
        for (first, last), more in zip(ends.tolist(), (piece.score + _SENTENCES * added).tolist(), strict=True):
            sentence = _Sentence(number, first, last, more, piece.place)
            best[sentence[:3]] = max(sentence, best.get(sentence[:3], sentence), key=lambda one: one.score)
    return [*best.values()]


def _within(cuts: Sequence[tuple[int, int]], piece: ScoredPiece) -> Iterator[tuple[int, int]]:
    """Yield the sentences that a piece has a part of: whole, but of very long ones that part alone."""
    for first, last in cuts[max(0, bisect_right(cuts, (piece.start, piece.start)) - 1) :]:
        if first >= piece.end:
            return
        if last - first > _MOST:
            first, last = max(first, piece.start), min(last, piece.end)
        if last > piece.start:
            yield first, last


def _by_tokens(
    encoder: TextEncoder, scores: DocumentScores, piece: ScoredPiece, title: str, text: str, ends: Ints
) -> Floats:
    """[sentences] late interaction of each sentence of a piece; 0 without token vectors."""
    added, products = np.zeros(len(ends), dtype=np.float32), scores.token_products(0, piece.place)
    whole = f"{title} {text[piece.start : piece.end]}"
    before = piece.start - len(title) - 1 + len(whole) - len(whole.lstrip())
    spans = encoder.spans(whole.strip(), "document") if len(products) else []
    if len(spans) != len(products):  # a title or text that is cut, or a text of another moment, has other tokens
        return added
    starts = np.array([-1 if span.is_special or span.start == span.end else span.start + before for span in spans])
    sentence = np.searchsorted(ends[:, 0], starts, side="right") - 1
    for number in range(len(ends)):
        of_sentence = products[(sentence == number) & (starts >= piece.start)]
        added[number] = of_sentence.max(axis=0).mean() if len(of_sentence) else 0
    return added


def _chosen(index: Snapshot, hits: Hits, ranked: Sequence[_Sentence], tokens: int) -> list[_Sentence]:
    """Return the first sentences that fit into a budget and do not repeat others; ValueError if none fits."""
    texts = [(hits[sentence.document].text or "")[sentence.start : sentence.end].strip() for sentence in ranked]
    counts = _counts(index.encoder, texts)
    if counts and min(counts) > tokens:
        raise ValueError(f"tokens is {tokens}, and the shortest sentence found has {min(counts)}. Ask for more tokens.")
    copies, chosen, known, numbers, left = _copies(index, ranked), list[int](), set[str](), set[str](), tokens
    for at, (text, count) in enumerate(zip(texts, counts, strict=True)):
        runs, digits = _runs(text), {*re.findall(r"\d+", text)}
        repeats = len(runs - known) <= (1 - _KNOWN) * len(runs) or (digits <= numbers and copies[at, chosen].any())
        if count <= left and not repeats:
            chosen.append(at)
            known |= runs
            numbers |= digits
            left -= count
    return [ranked[at] for at in chosen]


def _copies(index: Snapshot, ranked: Sequence[_Sentence]) -> Bools:
    """[sentences, sentences] True where two are of different pieces whose vectors are nearly the same."""
    places = np.array([sentence.place for sentence in ranked], dtype=np.int64)
    vectors = index.tree.embeddings[places] - index.tree.centroids[[0]]
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return np.asarray((vectors @ vectors.T > _SAME) & (places[:, None] != places))


def _within_budget(encoder: TextEncoder, hits: Hits, chosen: list[_Sentence], tokens: int) -> tuple[list[Passage], int]:
    """Return the passages of sentences, and their tokens; the last are left out while joined ones have too many."""
    while True:
        passages = _passages(hits, chosen)
        if (count := sum(_counts(encoder, [passage.text or "" for passage in passages]))) <= tokens:
            return passages, count
        chosen = chosen[:-1]


def _counts(encoder: TextEncoder, texts: Sequence[str]) -> list[int]:
    """Return how many tokens each text has."""
    return [len(offsets) for offsets in encoder.token_offsets(texts, _LONGEST)] if texts else []


def _runs(text: str) -> set[str]:
    """Return all runs of a few letters of a text, without case, spaces and punctuation."""
    letters = "".join(filter(str.isalnum, text.casefold()))
    return {letters[at : at + _SHINGLE] for at in range(max(1, len(letters) - _SHINGLE + 1))}


def _passages(hits: Hits, chosen: Sequence[_Sentence]) -> list[Passage]:
    """Return sentences as passages, the best first: those that stand together, or share a part, are one."""
    joined = list[_Sentence]()
    for sentence in sorted(chosen):
        if joined and joined[-1].document == sentence.document and sentence.start <= joined[-1].end:
            last = joined.pop()
            sentence = last._replace(end=max(sentence.end, last.end), score=max(sentence.score, last.score))
        joined.append(sentence)
    return [hits[sentence.document].part(*sentence[1:4]) for sentence in sorted(joined, key=lambda one: -one.score)]
