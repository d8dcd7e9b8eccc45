"""Token vectors: codes against faiss's own decoder, late interaction against its definition, changes, files of strangers."""

import faiss
import numpy as np
import pytest

from dsi.contrastive import blocks, tokens
from dsi.contrastive.config import EncoderConfig, TokensConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.tokens import TokenHead
from dsi.docids.files.processes import Processes
from dsi.docids.files.storage import save_tensors
from dsi.docids.token_vectors import BITS, TokenCodes, TokenVectors, decode, encode, encode_states, project

RNG = np.random.default_rng(3)


def states(texts: int, width: int = 24, rng: np.random.Generator = RNG) -> list[np.ndarray]:
    return [rng.normal(size=(int(rng.integers(0, 9)), width)).astype(np.float32) for _ in range(texts)]


def vectors_of(texts: int, bits: int = 2, dim: int = 16, seed: int = 0) -> tuple[TokenVectors, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    head, own = rng.normal(size=(dim, 24)).astype(np.float32), states(texts, rng=rng)
    return TokenVectors(head, bits, (encode_states(head, bits, own),), np.arange(texts, dtype=np.int32)), own


def literal(vectors: TokenVectors, query: np.ndarray, place: int) -> float:
    """Late interaction by its definition, over codes that faiss decodes."""
    codes = vectors.gather(np.array([place])).codes
    if not len(codes) or not len(query):
        return 0.0
    quantizer = faiss.ScalarQuantizer(vectors.dim, getattr(faiss.ScalarQuantizer, f"QT_{vectors.bits}bit_tqmse"))
    quantizer.train(np.eye(1, vectors.dim, dtype=np.float32))
    tokens = quantizer.decode(np.ascontiguousarray(codes)).astype(np.float64)
    tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
    return float(np.mean([max(token @ own for token in tokens) for own in query]))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [8, 40, 128])
def test_codes_are_those_of_faiss_and_keep_direction(bits, dim):
    vectors = project(np.eye(dim, dtype=np.float32), RNG.normal(size=(300, dim)).astype(np.float32))
    codes = encode(vectors, bits)
    assert codes.shape == (300, dim * bits // 8)
    found, norms = decode(codes, dim, bits)
    quantizer = faiss.ScalarQuantizer(dim, getattr(faiss.ScalarQuantizer, f"QT_{bits}bit_tqmse"))
    quantizer.train(np.eye(1, dim, dtype=np.float32))
    np.testing.assert_allclose(found, quantizer.decode(codes), atol=1e-6)
    cosines = (found * vectors).sum(axis=1) / norms
    assert cosines.mean() > {2: 0.93, 4: 0.99, 8: 0.999}[bits]


@pytest.mark.parametrize("bits", BITS)
def test_late_interaction_is_as_defined_for_any_queries_and_places_in_any_order(bits, monkeypatch):
    monkeypatch.setattr("dsi.docids.token_vectors._PRODUCTS", 28)  # several blocks
    monkeypatch.setattr("dsi.docids.token_vectors._DECODED", 3)
    vectors, _ = vectors_of(30, bits)
    queries = [vectors.project(RNG.normal(size=(tokens, 24)).astype(np.float32)) for tokens in (4, 0, 1, 7)]
    for places in (np.arange(30), RNG.permutation(30)[:11], np.array([3, 3, 0]), np.array([], dtype=int)):
        expected = [[literal(vectors, query, int(place)) for place in places] for query in queries]
        np.testing.assert_allclose(
            vectors.late_interaction(queries, [places] * 4), np.array(expected).reshape(4, -1), atol=1e-5
        )
    assert not vectors.late_interaction(queries[1:2], [np.arange(3)])[0].any()  # a query of special tokens only


@pytest.mark.parametrize("products", [28, 2**20])
def test_late_interaction_of_places_that_some_queries_ask_for(products, monkeypatch):
    monkeypatch.setattr("dsi.docids.token_vectors._PRODUCTS", products)
    vectors, _ = vectors_of(30)
    queries = [vectors.project(RNG.normal(size=(tokens, 24)).astype(np.float32)) for tokens in (4, 0, 1, 7)]
    for _ in range(20):
        places = [RNG.integers(0, 30, RNG.integers(0, 9)) for _ in queries]
        found = vectors.late_interaction(queries, places)
        for query, own, scores in zip(queries, places, found, strict=True):
            np.testing.assert_allclose(scores, [literal(vectors, query, int(place)) for place in own], atol=1e-5)


def test_places_change_as_a_list_of_texts_would():
    vectors, own = vectors_of(12)
    expected, rng = list(own), np.random.default_rng(1)
    for _ in range(6):
        new = states(3, rng=rng)
        source = rng.permutation(len(expected) + 3)[: rng.integers(4, len(expected) + 3)]
        vectors = vectors.arranged(source, encode_states(vectors.head, vectors.bits, new))
        expected = [[*expected, *new][row] for row in source]
        gone = rng.choice(len(expected), 2, replace=False)
        vectors = vectors.without(gone)
        expected = [np.zeros((0, 24), np.float32) if row in gone else text for row, text in enumerate(expected)]
        codes = vectors.gather(np.arange(len(expected)))
        same = encode_states(vectors.head, vectors.bits, expected)
        np.testing.assert_array_equal(codes.codes, same.codes)
        np.testing.assert_array_equal(codes.starts, same.starts)
        assert len(vectors.parts) == 2


def test_what_is_saved_is_loaded_and_nothing_of_a_removed_place_is_written(tmp_path):
    vectors, own = vectors_of(20, bits=8)
    vectors = vectors.arranged(np.arange(22), encode_states(vectors.head, vectors.bits, states(2))).without(
        np.array([4, 21])
    )
    removed = vectors_of(20, bits=8)[0].gather(np.array([4])).codes
    vectors.save(tmp_path / "tokens.safetensors")
    content = (tmp_path / "tokens.safetensors").read_bytes()
    assert len(own[4])
    assert not any(code.tobytes() in content for code in removed)
    again = TokenVectors.load(tmp_path / "tokens.safetensors", 22)
    np.testing.assert_array_equal(again.gather(np.arange(22)).codes, vectors.gather(np.arange(22)).codes)
    np.testing.assert_array_equal(again.head, vectors.head)
    assert (again.bits, again.dim) == (8, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": np.array([3], np.int32)}, "not sound"),
        ({"bits": np.array([2, 2], np.int32)}, "tokens of 3 docids"),
        ({"head": np.full((16, 24), np.nan, np.float32)}, "not sound"),
        ({"head": np.ones((8, 24), np.float32)}, "not sound"),
        ({"head": np.ones((15, 24), np.float32)}, "not sound"),
        ({"counts": np.array([4, -2, 8], np.int32)}, "not sound"),
        ({"counts": np.array([4, 6, 2**31 - 1], np.int32)}, "tokens of 3 docids"),
        ({"counts": np.array([10], np.int32)}, "tokens of 3 docids"),
        ({"codes": np.zeros((10, 4), np.int8)}, "'codes' is missing, unknown or of another type"),
        ({"more": np.zeros(3, np.float32)}, "'more' is missing, unknown or of another type"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, changes, message):
    arrays = {
        "codes": np.zeros((10, 4), np.uint8), "counts": np.array([4, 5, 1], np.int32),
        "head": np.ones((16, 24), np.float32), "bits": np.array([2], np.int32),
    }  # fmt: skip
    path = tmp_path / "tokens.safetensors"
    save_tensors(arrays, path)
    assert TokenVectors.load(path, 3).is_sound()
    save_tensors({**arrays, **changes}, path)
    try:
        found = "sound" if TokenVectors.load(path, 3).is_sound() else "not sound"
    except ValueError as error:
        found = str(error)
    assert message == found or (message != "not sound" and message in found)


def test_the_head_keeps_products_and_one_pass_gives_embeddings_and_codes(sentence_bert_folder):
    encoder = Encoder.load(EncoderConfig(str(sentence_bert_folder)), device="cpu")
    texts = [
        f"the danube flows past {word} capitals" + " and on" * n for n, word in enumerate(["four", "two", "no"] * 30)
    ]
    head = TokenHead.fit(encoder, texts, TokensConfig(dim=512, bits=8))
    assert head.matrix.shape == (encoder.state_dim // 8 * 8, encoder.state_dim)  # at most the width of the states
    embeddings, codes = head.encode(encoder, texts)
    np.testing.assert_allclose(embeddings, encoder.encode(texts, "document"), atol=1e-5)
    by_row = {row: own for row, own, _ in encoder.token_states(texts, "document")}
    own = [by_row[row] for row in range(len(texts))]
    assert codes.counts.tolist() == [len(text) for text in own]
    a, b = own[0], own[40]
    plain = (
        project(np.eye(encoder.state_dim, dtype=np.float32), a)
        @ project(np.eye(encoder.state_dim, dtype=np.float32), b).T
    )
    np.testing.assert_allclose(project(head.matrix, a) @ project(head.matrix, b).T, plain, atol=1e-4)
    again = TokenHead.fit(encoder, texts, TokensConfig(dim=512, bits=8))
    np.testing.assert_array_equal(again.matrix, head.matrix)


@pytest.mark.parametrize("held", [2**26, 5_000])
def test_what_the_head_was_fitted_to_is_not_encoded_again(held, sentence_bert_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "SAMPLE", 40)
    monkeypatch.setattr(tokens, "_HELD", held)
    monkeypatch.setattr(blocks, "BLOCK", 32)
    encoder = Encoder.load(EncoderConfig(str(sentence_bert_folder)), device="cpu")
    texts = ["the danube flows " + "past two capitals " * n for n in range(70)]
    read = []
    run = Encoder.run
    monkeypatch.setattr(Encoder, "run", lambda self, batch, kind: read.append(len(batch)) or run(self, batch, kind))
    TokenHead.fit(encoder, texts, TokensConfig(dim=8, bits=8)).save(tmp_path / "head.safetensors")
    head = TokenHead.load(tmp_path / "head.safetensors", 8)
    again = 40 - len(head.sample.rows)
    assert (again == 0) == (held == 2**26)
    embeddings = blocks.encode_blocks(encoder, texts, "document", tmp_path / "blocks", Processes(), head)
    assert sum(read) == 70 + again
    codes = blocks.read_token_blocks(tmp_path / "blocks")
    plain, plain_codes = TokenHead(head.matrix, 8).encode(encoder, texts)
    np.testing.assert_allclose(embeddings, plain, atol=1e-6)
    np.testing.assert_array_equal(codes.starts, plain_codes.starts)
    assert np.abs(codes.codes.astype(int) - plain_codes.codes).max() <= 1  # last bits differ by batch


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 12}, "tokens.dim must be a multiple of 8, got 12"),
        ({"dim": 0}, "tokens.dim must be .*got 0"),
        ({"bits": 3}, "one of 2, 4, 8, got 3"),
    ],
)
def test_dimensions_and_bits_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TokensConfig(**settings)


def test_no_texts_have_no_codes():
    codes = encode_states(np.ones((8, 4), np.float32), 2, [])
    assert (len(codes), codes.codes.shape) == (0, (0, 2))
    assert len(TokenCodes.join([codes, codes])) == 0
