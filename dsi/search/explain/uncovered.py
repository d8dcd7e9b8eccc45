"""Which words of a query no document of the index has, and which none of the returned documents covers. Knows no scores.

A document covers a word by having it, as BM25 counts words (stems, any script, identifiers), or by a clear match of late
interaction. That no document has a word is certain; that a returned one covers it says nothing of what it means there.
"""

from collections.abc import Iterator, Sequence, Set

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.words.analyzer import UNSPACED, fold
from dsi.docids.words.common import ASKING, ASKING_WORDS
from dsi.docids.words.occurrences import Occurrence, occurrences
from dsi.search.engine import Engine
from dsi.search.explain.matches import QueryTokens, is_weak
from dsi.search.hits import Uncovered
from dsi.search.queries import EncodedQueries
from dsi.search.request import SearchRequest


def uncovered_words(
    engine: Engine, encoder: TextEncoder, query: EncodedQueries, request: SearchRequest, positions: Sequence[int]
) -> Uncovered:
    """Return the words of one query that an answer, by its docid positions, lacks; none without BM25 or a text."""
    (batch,), lexical = query.batches, engine.lexical
    text = batch.texts[0]
    if lexical is None or not text.strip():
        return Uncovered()
    asked = occurrences(text, lexical.language, set(lexical.analyzer.terms(text)))
    known = lexical.known_terms(text)
    nowhere = [] if request.allowed is not None else list(_lacking(text, asked, set(known)))
    (terms,), rows = lexical.share_terms([text]), engine.tree.doc_rows[list(positions)]
    added = lexical.scorer.contributions(terms, rows)  # [terms, documents]
    present = {term for term, shares in zip(known, added, strict=True) if shares.any()}
    elsewhere = [span for span in _lacking(text, asked, present) if positions and span not in nowhere]
    elsewhere = _unseen(engine, encoder, query, request, positions, elsewhere)
    asking = ASKING_WORDS.get(lexical.language, "").split()
    return Uncovered(_words(text, nowhere, asking), _words(text, elsewhere, asking))


def _lacking(text: str, asked: Sequence[Occurrence], known: Set[str]) -> Iterator[tuple[int, int]]:
    """Yield the ends of words whose term is not known, common words left out.

    In scripts without spaces terms are overlapping pairs of letters, and that of the last letter of a word and the first of the
    next is often unknown: there a word is two letters or more that stand in no known pair.
    """
    letters: dict[bool, set[int]] = {True: set(), False: set()}
    for word in asked:
        letters[word.terms[0] in known].update(range(word.start, word.end))
    lost = letters[False] - letters[True] - {place for found in ASKING.finditer(text) for place in range(*found.span())}
    for start in sorted(lost):
        if start - 1 in lost:
            continue
        end = next(place for place in range(start + 1, len(text) + 1) if place not in lost)
        if not is_weak(text[start:end]) and (end > start + 1 or not UNSPACED.match(text[start:end])):
            yield start, end


def _unseen(
    engine: Engine, encoder: TextEncoder, query: EncodedQueries, request: SearchRequest, positions: Sequence[int],
    spans: list[tuple[int, int]],
) -> list[tuple[int, int]]:  # fmt: skip
    """Return those of some words of a query that late interaction finds in no document: by the mean product of their tokens."""
    token_shares = engine.token_shares(query.batches[0], request, positions) if spans else None
    if token_shares is None:
        return spans
    tokens = QueryTokens.from_query(encoder, query.texts[0], request.config.token_weight)
    best = [max(shares) for shares in zip(*(shares.tolist() for _, shares in token_shares), strict=True)]
    places = [(start - tokens.start, end - tokens.start) for start, end in tokens.words]
    unseen = []
    for start, end in spans:
        products = [share for (first, last), share in zip(places, best, strict=True) if first < end and start < last]
        if not products or sum(products) < tokens.least * len(products):
            unseen.append((start, end))
    return unseen


def _words(text: str, spans: Sequence[tuple[int, int]], without: Sequence[str]) -> tuple[str, ...]:
    """Return words by their ends, but for some, each once whatever its case and accents."""
    words = dict[str, str]()
    for start, end in spans:
        if text[start:end].lower() not in without:
            words.setdefault(fold(text[start:end]), text[start:end])
    return tuple(words.values())
