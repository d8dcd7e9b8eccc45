"""Constraints that let a language model write identifiers only: how each library builds one, masks a step and goes on.

A system has `build(texts, tokens)`, `start(rows)` and `step(logits, tokens)`, which masks logits [rows, vocabulary] and then
takes the token of each row. Tokens are those of the tokenizer, the end token last; a library that works on characters takes
other tokens of the same text too. Knows nothing of indexes.
"""

import multiprocessing
import random
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_SYLLABLES = (
    "al an ar be co da de el en er fa go ha in is ka la le ma mi na no or pe ra re ri ro sa se ta te ti to ur va"
)
_MEMORY = 16 * 2**30
"""Bytes of address space that a system may take."""
Tokens = Sequence[Sequence[int]]


class Ours:
    """`dsi.tries.Trie`."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def build(self, texts: Sequence[str], tokens: Tokens) -> float:
        """Return the megabytes."""
        from dsi.tries import Trie

        self.trie = Trie.from_tokens([row[:-1] for row in tokens], tokens[0][-1:])
        return self.trie.nbytes / 1e6

    def start(self, rows: int) -> None:
        """Begin identifiers."""
        self.state = self.trie.start(rows)

    def step(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Return the masked logits, and take tokens [rows]."""
        masked = self.trie.constrain(logits, self.state)
        self.state = self.trie.step(self.state, tokens)
        return masked


class PrefixFunction(Ours):
    """`prefix_allowed_tokens_fn` of transformers over nested dictionaries."""

    def build(self, texts: Sequence[str], tokens: Tokens) -> float:
        """Return nothing: dictionaries do not know their size."""
        from transformers.generation import PrefixConstrainedLogitsProcessor

        trie: dict[int, Any] = {}
        for row in tokens:
            node = trie
            for token in row:
                node = node.setdefault(token, {})
        end = tokens[0][-1]

        def allowed(_: int, prefix: Tensor) -> list[int]:
            node = trie
            for token in prefix.tolist():
                node = node.get(token, {})
            return list(node) or [end]

        self.processor = PrefixConstrainedLogitsProcessor(allowed, 1)
        return float("nan")

    def start(self, rows: int) -> None:
        """Begin identifiers."""
        self.written = torch.zeros(rows, 0, dtype=torch.int64)

    def step(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Return the masked logits, and take tokens [rows]."""
        masked: Tensor = self.processor(self.written, logits)
        self.written = torch.cat([self.written, tokens[:, None]], 1)
        return masked


class Xgrammar(Ours):
    """xgrammar: a grammar of alternatives."""

    def build(self, texts: Sequence[str], tokens: Tokens) -> float:
        """Return the megabytes."""
        import xgrammar

        info = xgrammar.TokenizerInfo.from_huggingface(self.tokenizer, stop_token_ids=[tokens[0][-1]])
        compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
        self.grammar = compiler.compile_grammar("root ::= " + " | ".join(f'"{text}"' for text in quoted))
        self.library = xgrammar
        return float(self.grammar.memory_size_bytes) / 1e6

    def start(self, rows: int) -> None:
        """Begin identifiers."""
        self.matchers = [self.library.GrammarMatcher(self.grammar) for _ in range(rows)]
        self.bitmask = self.library.allocate_token_bitmask(rows, len(self.tokenizer))

    def step(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Return the masked logits, and take tokens [rows]."""
        for row, matcher in enumerate(self.matchers):
            if not matcher.is_terminated():
                matcher.fill_next_token_bitmask(self.bitmask, row)
        self.library.apply_token_bitmask_inplace(logits, self.bitmask)
        for matcher, token in zip(self.matchers, tokens.tolist(), strict=True):
            if not matcher.is_terminated():
                assert matcher.accept_token(token)
        return logits


class Llguidance(Ours):
    """llguidance: a Lark grammar of one terminal of alternatives."""

    def build(self, texts: Sequence[str], tokens: Tokens) -> float:
        """Return nothing: it does not say."""
        import json

        import llguidance
        import llguidance.hf
        import llguidance.torch

        self.library, self.engine = llguidance, llguidance.hf.from_tokenizer(self.tokenizer)
        options = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        self.grammar = llguidance.LLMatcher.grammar_from_lark(f"start: TITLE\nTITLE: {options}")
        limits = llguidance.LLParserLimits(initial_lexer_fuel=10**9, step_lexer_fuel=10**9, max_grammar_size=10**9)
        self.matcher = llguidance.LLMatcher(self.engine, self.grammar, limits=limits)
        if self.matcher.is_error():
            raise ValueError(self.matcher.get_error()[:200])
        self.start(1)
        llguidance.torch.fill_next_token_bitmask(self.matchers[0], self.bitmask, 0)  # builds what the first mask needs
        return float("nan")

    def start(self, rows: int) -> None:
        """Begin identifiers."""
        self.matchers = [self.matcher.deep_copy() for _ in range(rows)]
        self.bitmask = self.library.torch.allocate_token_bitmask(rows, len(self.tokenizer))
        self.executor = self.library.LLExecutor(num_threads=1)

    def step(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Return the masked logits, and take tokens [rows]."""
        pairs = list(zip(self.matchers, range(len(self.matchers)), strict=True))
        self.library.torch.fill_next_token_bitmask_par(self.executor, pairs, self.bitmask)
        self.library.torch.apply_token_bitmask_inplace(logits, self.bitmask)
        for matcher, token in zip(self.matchers, tokens.tolist(), strict=True):
            if not matcher.is_stopped():
                assert matcher.consume_token(token)
        return logits


class OutlinesCore(Ours):
    """outlines-core: an index of a regular expression over the vocabulary."""

    def build(self, texts: Sequence[str], tokens: Tokens) -> float:
        """Return nothing: it does not say."""
        import re

        import outlines_core
        from outlines_core.kernels.torch import allocate_token_bitmask
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        words: dict[bytes, list[int]] = {}
        alphabet = {character: byte for byte, character in bytes_to_unicode().items()}
        for token, number in self.tokenizer.get_vocab().items():
            if number not in self.tokenizer.all_special_ids:
                words.setdefault(bytes(alphabet[character] for character in token), []).append(number)
        longest_first = sorted(texts, key=len, reverse=True)  # after a match, what it begins is not followed
        self.end = tokens[0][-1]
        vocabulary = outlines_core.Vocabulary(self.end, words)
        self.index = outlines_core.Index("|".join(re.escape(text) for text in longest_first), vocabulary)
        self.bitmask = allocate_token_bitmask(len(self.tokenizer))
        return float("nan")

    def start(self, rows: int) -> None:
        """Begin identifiers."""
        import outlines_core

        self.matchers = [outlines_core.Guide(self.index) for _ in range(rows)]
        self.refused: set[int] = set()

    def step(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Return the masked logits, and take tokens [rows]."""
        from outlines_core.kernels.torch import apply_token_bitmask_inplace, fill_next_token_bitmask

        for row, guide in enumerate(self.matchers):
            fill_next_token_bitmask(guide, self.bitmask)
            apply_token_bitmask_inplace(logits[row : row + 1], self.bitmask)
        for row, (guide, token) in enumerate(zip(self.matchers, tokens.tolist(), strict=True)):
            if token != self.end and row not in self.refused:
                try:
                    guide.advance(token, return_tokens=False)
                except ValueError:  # after an identifier it follows no token that goes on inside a word of another
                    self.refused.add(row)
        return logits


SYSTEMS: dict[str, type[Ours]] = {
    "ours": Ours, "prefix_allowed_tokens_fn": PrefixFunction, "xgrammar": Xgrammar, "llguidance": Llguidance,
    "outlines-core": OutlinesCore,
}  # fmt: skip
"""{name in the table: system}."""


def made_up_titles(count: int) -> list[str]:
    """Return different titles of one to six made-up words, of which many begin others."""
    chance = random.Random(0)
    syllables = _SYLLABLES.split()
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 4))).capitalize() for _ in range(30_000)]
    titles: dict[str, None] = {}
    while len(titles) < count:
        length = chance.choice((1, 2, 2, 3, 3, 4, 5, 6))
        titles[" ".join(words[int(len(words) * chance.random() ** 3)] for _ in range(length))] = None
    return list(titles)


def measure(
    name: str, tokenizer: str, texts: Sequence[str], rows: Sequence[int], rounds: int, limit: int
) -> dict[str, Any]:
    """Return seconds to build, MB, and microseconds a step by rows; or the reason why it has no such constraint.

    `rows` are sizes of batches, `rounds` identifiers that each row writes, `limit` the seconds that a system may take.
    """
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    process = context.Process(target=_measured, args=(answers, name, tokenizer, texts, rows, rounds))
    process.start()
    started, result = time.monotonic(), None
    while result is None and process.is_alive() and time.monotonic() < started + limit:
        try:
            result = answers.get(timeout=1)
        except Exception:  # queue.Empty
            continue
    gone = not process.is_alive()
    process.kill()
    process.join()
    return result or {"problem": f"ended with {process.exitcode}" if gone else f"not built and measured in {limit} s"}


def _measured(answers: Any, name: str, *given: Any) -> None:
    try:
        answers.put(_measure(SYSTEMS[name], *given))
    except BaseException as error:  # also those that extensions in Rust raise
        answers.put({"problem": f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"})


def _measure(
    system: Callable[[Any], Ours], folder: str, texts: Sequence[str], rows: Sequence[int], rounds: int
) -> dict[str, Any]:
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    end = tokenizer.eos_token_id
    tokens = [[*row, end] for row in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
    own, started = system(tokenizer), time.perf_counter()
    megabytes = own.build(texts, tokens)
    result: dict[str, Any] = {"seconds": round(time.perf_counter() - started, 2), "mb": round(megabytes, 1)}
    for count in rows:
        seconds, refused = _seconds_a_step(own, tokens, count, rounds, len(tokenizer))
        result[f"us_{count}"] = round(1e6 * seconds, 1)
        result["refused"] = result.get("refused", 0) + refused
    return result


def _seconds_a_step(own: Ours, tokens: Tokens, rows: int, rounds: int, vocabulary: int) -> tuple[float, int]:
    """Return the median over rounds, in which each row writes an identifier and then end tokens, and how many it refused."""
    chance, times, refused = random.Random(rows), [], 0
    for _ in range(rounds):
        chosen = chance.sample(tokens, rows)
        steps = max(map(len, chosen))
        written = torch.tensor([[*row, *[row[-1]] * (steps - len(row))] for row in chosen])
        own.start(rows)
        logits = [torch.zeros(rows, vocabulary) for _ in range(steps)]
        started = time.perf_counter()
        for step in range(steps):
            masked = own.step(logits[step], written[:, step])
        times.append((time.perf_counter() - started) / steps)
        refused += len(getattr(own, "refused", ()))
        assert bool(masked.isfinite().any(-1).all())
    return sorted(times)[len(times) // 2], refused
