"""Packed linear layers give what ordinary ones give."""

import json
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.inference import PackedLinear, for_inference
from tests.support.small import MINIPEDIA


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_linear_equals_linear(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(24, 40, bias=bias).to(dtype)
    packed = PackedLinear(linear.weight, linear.bias)
    for shape in ((1, 24), (7, 24), (3, 5, 24), (200, 24)):
        inputs = torch.randn(shape, dtype=dtype)
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(packed(inputs), linear(inputs), atol=tolerance, rtol=tolerance)
        assert not packed(inputs).requires_grad


def test_float32_and_bfloat16_are_packed_on_this_processor_or_run_plain() -> None:
    weight = torch.randn(8, 8)
    assert (PackedLinear(weight).packed is not None) == torch.backends.mkldnn.is_available()
    assert PackedLinear(weight.double()).packed is None


def test_for_inference_shares_weights_and_keeps_their_names() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Sequential(nn.ReLU(), nn.Linear(5, 3, bias=False)))
    fast = for_inference(model, torch.float32)
    inputs = torch.randn(4, 6)
    torch.testing.assert_close(fast(inputs), model.eval()(inputs))
    assert isinstance(fast[0], PackedLinear)
    assert isinstance(fast[2][1], PackedLinear)
    assert type(model[0]) is nn.Linear
    own, others = model.state_dict(), fast.state_dict()
    assert list(own) == list(others)
    assert all(own[name].data_ptr() == others[name].data_ptr() for name in own)


def test_another_dtype_leaves_the_model_alone() -> None:
    model = nn.Sequential(nn.Linear(6, 5))
    fast = for_inference(model, torch.bfloat16)
    assert model[0].weight.dtype == torch.float32
    assert fast[0].weight.dtype == torch.bfloat16  # type: ignore[index]


def test_products_in_bfloat16_are_those_of_autocast() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 64, bias=False)).eval()
    fast, inputs = for_inference(model, torch.float32, torch.bfloat16), torch.randn(40, 64)
    assert [own.dtype for own in fast.parameters()] == [torch.bfloat16] * 2 + [torch.float32] * 2 + [torch.bfloat16]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(fast(inputs), model(inputs), rtol=0, atol=0)


def test_what_is_packed_can_be_packed_again_in_another_dtype() -> None:
    model = nn.Sequential(nn.Linear(6, 5))
    again = for_inference(for_inference(model, torch.float32), torch.float64)
    inputs = torch.randn(3, 6)
    torch.testing.assert_close(again(inputs.double()).float(), model(inputs))
    copied = pickle.loads(pickle.dumps(for_inference(model, torch.float32)))
    torch.testing.assert_close(copied(inputs), model(inputs))


def test_many_documents_are_embedded_in_bfloat16_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder.load(EncoderConfig(), device="cpu")
    texts = [
        json.loads(line)["text"] for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:8]
    ]
    exact = encoder.encode(texts, "document")
    monkeypatch.setattr("dsi.contrastive.encoder.has_bfloat16", lambda **_: True)
    few, many = encoder.for_documents(1_999), encoder.for_documents(2_000)
    np.testing.assert_allclose(few.encode(texts, "document"), exact, atol=1e-6)
    rounded = many.encode(texts, "document")
    assert 1e-6 < np.abs(rounded - exact).max() < 0.01
    np.testing.assert_allclose(np.linalg.norm(rounded, axis=1), 1, atol=1e-5)
    assert rounded.dtype == np.float32
    monkeypatch.setattr("dsi.contrastive.encoder.has_bfloat16", lambda **_: False)
    np.testing.assert_allclose(encoder.for_documents(2_000).encode(texts, "document"), exact, atol=1e-6)
