"""What the tokenizer of an index may be: its JSON files as declarations, every part by name and with bounds on its numbers.

No part makes a text more than a few times as long, backtracks, or names a file. transformers and tokenizers read the same
files after this; a file that fits reads the same everywhere. Knows nothing of models.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError

TOKENIZERS = (
    "AlbertTokenizer", "BertTokenizer", "BertTokenizerFast", "CamembertTokenizer", "DebertaV2Tokenizer", "DistilBertTokenizer",
    "ElectraTokenizer", "GemmaTokenizer", "MPNetTokenizer", "PreTrainedTokenizerFast", "Qwen2Tokenizer", "RobertaTokenizer",
    "T5Tokenizer", "TokenizersBackend", "XLMRobertaTokenizer",
)  # fmt: skip
"""Classes of transformers that add nothing but what `TokenizerConfigFile` declares."""
PATTERNS = (
    " {2,}", r"\s+", r"\n", r"^▁+$", r"\s{2,}|[\n\r\t]", r"[\n\r\t]", r"\p{P}", r"\d",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)  # fmt: skip
"""The regular expressions that may occur: those of common tokenizers, which do not backtrack."""

_ADDED = 10_000
"""Added tokens, at most; Gemma has 6,415."""
_GROWTH = 64
"""Bytes that a character may become by a table of replacements; 33 in those of SentencePiece."""


class Part(BaseModel):
    """A JSON object with known keys only, of exactly the types that it declares."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _check_single(parts: Iterable[Part], kinds: tuple[type[Part], ...], what: str) -> None:
    if sum(isinstance(part, kinds) for part in parts) > 1:
        raise ValueError(f"only one {what}")


def _check_numbers(ids: Mapping[str, int]) -> Mapping[str, int]:
    if any(number < 0 for number in ids.values()):
        raise ValueError("numbers of tokens must be at least 0")
    return ids


Few: TypeAlias = Annotated[str, Field(max_length=16)]
Short: TypeAlias = Annotated[str, Field(max_length=64)]
Piece: TypeAlias = Annotated[str, Field(max_length=512)]
Token: TypeAlias = Annotated[str, Field(min_length=1, max_length=512)]
Number: TypeAlias = Annotated[int, Field(ge=0, le=10**7)]
Score: TypeAlias = Annotated[float | int, Field(allow_inf_nan=False)]
Numbered: TypeAlias = Annotated[tuple[Token, Number], Strict(False)]
Merge: TypeAlias = Annotated[tuple[Piece, Piece], Strict(False)]
Scored: TypeAlias = Annotated[tuple[Piece, Score], Strict(False)]
Vocabulary: TypeAlias = Annotated[dict[Piece, int], AfterValidator(_check_numbers)]


class Regex(Part):
    """A regular expression."""

    Regex: Literal[PATTERNS]  # type: ignore[valid-type]


class Literally(Part):
    """A text to find."""

    String: Annotated[Few, Field(min_length=1)]


# Normalizers.


class BertNormalizer(Part):
    """BERT's."""

    type: Literal["BertNormalizer"]
    clean_text: bool = True
    handle_chinese_chars: bool = True
    strip_accents: bool | None = None
    lowercase: bool = True


class Form(Part):
    """A normalizer without parameters; none makes a text much longer if it is repeated."""

    type: Literal["Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "StripAccents"]


class StripNormalizer(Part):
    """Removes spaces at the ends."""

    type: Literal["Strip"]
    strip_left: bool = True
    strip_right: bool = True


class Prepend(Part):
    """Writes the mark of a word in front of a text."""

    type: Literal["Prepend"]
    prepend: Annotated[str, Field(max_length=1)]


class Replace(Part):
    """Replaces a text by one with no more characters."""

    type: Literal["Replace"]
    pattern: Regex | Literally
    content: Few

    def model_post_init(self, context: Any) -> None:
        """Check that texts do not grow."""
        most = len(self.pattern.String) if isinstance(self.pattern, Literally) else 1
        if len(self.content) > most:
            raise ValueError(f"content {self.content!r} is longer than what it replaces")


def _check_charsmap(text: str) -> str:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("precompiled_charsmap is not base64") from None
    if problem := _charsmap_problem(data):
        raise ValueError(f"precompiled_charsmap: {problem}")
    return text


def _charsmap_problem(data: bytes) -> str:
    """Return what is wrong with SentencePiece's table of replacements, or an empty string.

    Four bytes with the size of a double-array trie, its units of four bytes, then the replacements, each ended by a zero. A
    unit has a label (8 bits), a flag (bit 8: a replacement ends here) and its children's offset, or a replacement's place.
    """
    size = int.from_bytes(data[:4], "little")
    if len(data) < 8 or size % 4 or not 0 < size <= len(data) - 4:
        return "its trie does not lie in it"
    units, texts = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64), data[4 + size :]
    places = np.flatnonzero(
        (units < 2**31) | (np.arange(len(units)) == 0)
    )  # others hold replacements, and are not walked
    inner = units[places]
    children = places ^ ((inner >> 10) << ((inner & 512) >> 6))
    if ((children | 255) >= len(units)).any():
        return "its trie leaves its array"
    targets = units[children[(inner & 256) != 0]] & (2**31 - 1)
    if (targets >= len(texts)).any() or max(map(len, texts.split(b"\0"))) > _GROWTH:
        return f"a replacement is missing or longer than {_GROWTH} bytes"
    try:
        texts.decode()
    except UnicodeDecodeError:
        return "its replacements are not UTF-8"
    starts = np.frombuffer(texts, np.uint8)[targets]
    return "a replacement starts within a character" if ((starts & 0xC0) == 0x80).any() else ""


class Precompiled(Part):
    """SentencePiece's table of replacements."""

    type: Literal["Precompiled"]
    precompiled_charsmap: Annotated[str, AfterValidator(_check_charsmap)]


class ByteLevel(Part):
    """GPT-2's bytes as letters, wherever it may stand."""

    type: Literal["ByteLevel"]
    add_prefix_space: bool = True
    trim_offsets: bool = True
    use_regex: bool = True


Normalizer: TypeAlias = Annotated[
    BertNormalizer | Form | StripNormalizer | Prepend | Replace | Precompiled | ByteLevel, Field(discriminator="type")
]


class Normalizers(Part):
    """Normalizers, one after another; at most one may be a table, or spell characters out as bytes."""

    type: Literal["Sequence"]
    normalizers: Annotated[list[Normalizer], Field(max_length=8)]

    def model_post_init(self, context: Any) -> None:
        """Check that no two of them make texts longer."""
        _check_single(self.normalizers, (Precompiled, ByteLevel), "normalizer may be Precompiled or ByteLevel")
        _check_single(self.normalizers, (Prepend,), "normalizer may be Prepend")


# Pre-tokenizers and decoders.


class Plain(Part):
    """A pre-tokenizer without parameters."""

    type: Literal["BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"]


class Metaspace(Part):
    """SentencePiece's mark of a word, as pre-tokenizer or decoder."""

    type: Literal["Metaspace"]
    replacement: Annotated[str, Field(min_length=1, max_length=1)]
    prepend_scheme: Literal["always", "never", "first"] = "always"
    split: bool = True


Behavior: TypeAlias = Literal["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
"""What becomes of the places at which a text is split."""


class Split(Part):
    """Splits at a pattern."""

    type: Literal["Split"]
    pattern: Regex | Literally
    behavior: Behavior
    invert: bool = False


class Punctuation(Part):
    """Splits at punctuation."""

    type: Literal["Punctuation"]
    behavior: Behavior = "Isolated"


class Digits(Part):
    """Splits at digits."""

    type: Literal["Digits"]
    individual_digits: bool = False


PreTokenizer: TypeAlias = Annotated[
    Plain | Metaspace | ByteLevel | Split | Punctuation | Digits, Field(discriminator="type")
]


class PreTokenizers(Part):
    """Pre-tokenizers, one after another."""

    type: Literal["Sequence"]
    pretokenizers: Annotated[list[PreTokenizer], Field(max_length=8)]

    def model_post_init(self, context: Any) -> None:
        """Check that bytes are not spelled out again."""
        _check_single(self.pretokenizers, (ByteLevel,), "pre-tokenizer may be ByteLevel")


class WordPieceDecoder(Part):
    """Joins pieces of words."""

    type: Literal["WordPiece"]
    prefix: Few
    cleanup: bool = True


class Joining(Part):
    """A decoder without parameters."""

    type: Literal["ByteFallback", "Fuse"]


class StripDecoder(Part):
    """Removes a character at the ends of tokens."""

    type: Literal["Strip"]
    content: Annotated[str, Field(min_length=1, max_length=1)]
    start: Annotated[int, Field(ge=0, le=16)]
    stop: Annotated[int, Field(ge=0, le=16)]


Decoder: TypeAlias = Annotated[
    WordPieceDecoder | Joining | StripDecoder | Metaspace | ByteLevel | Replace, Field(discriminator="type")
]


class Decoders(Part):
    """Decoders, one after another."""

    type: Literal["Sequence"]
    decoders: Annotated[list[Decoder], Field(max_length=8)]


# Post-processors.


class Place(Part):
    """Where a text or a special token stands in a template."""

    id: Token
    type_id: Annotated[int, Field(ge=0, le=1)]


class Sequence(Part):
    """A text in a template."""

    Sequence: Place


class SpecialToken(Part):
    """A special token in a template."""

    SpecialToken: Place


class SpecialIds(Part):
    """The number of a special token in a template."""

    id: Token
    ids: Annotated[list[Number], Field(min_length=1, max_length=1)]
    tokens: Annotated[list[Token], Field(min_length=1, max_length=1)]


Template: TypeAlias = Annotated[list[Sequence | SpecialToken], Field(min_length=1, max_length=9)]


class TemplateProcessing(Part):
    """Special tokens around one text, or two."""

    type: Literal["TemplateProcessing"]
    single: Template
    pair: Template
    special_tokens: Annotated[dict[Token, SpecialIds], Field(max_length=9)]

    def model_post_init(self, context: Any) -> None:
        """Check that each text occurs once."""
        for template, texts in ((self.single, ["A"]), (self.pair, ["A", "B"])):
            if sorted(each.Sequence.id for each in template if isinstance(each, Sequence)) != texts:
                raise ValueError(f"a template must hold {' and '.join(texts)} once")


class PairProcessing(Part):
    """BERT's or RoBERTa's special tokens."""

    type: Literal["BertProcessing", "RobertaProcessing"]
    sep: Numbered
    cls: Numbered
    trim_offsets: bool = True
    add_prefix_space: bool = True


PostProcessor: TypeAlias = Annotated[TemplateProcessing | PairProcessing | ByteLevel, Field(discriminator="type")]


class PostProcessors(Part):
    """Post-processors, one after another; one of them adds special tokens."""

    type: Literal["Sequence"]
    processors: Annotated[list[PostProcessor], Field(max_length=2)]

    def model_post_init(self, context: Any) -> None:
        """Check that special tokens are added once."""
        _check_single(self.processors, (TemplateProcessing, PairProcessing), "post-processor may add special tokens")


# Models.


class WordPiece(Part):
    """BERT's pieces of words; a word takes time that grows with the square of its length."""

    type: Literal["WordPiece"]
    vocab: Vocabulary
    unk_token: Token = "[UNK]"
    continuing_subword_prefix: Few = "##"
    max_input_chars_per_word: Annotated[int, Field(ge=1, le=1000)] = 100


class BPE(Part):
    """Byte pair encoding."""

    type: Literal["BPE"]
    vocab: Vocabulary
    merges: list[Annotated[str, Field(max_length=1025)] | Merge]
    dropout: None = None
    unk_token: Token | None = None
    continuing_subword_prefix: Literal["", None] = None
    end_of_word_suffix: Literal["", None] = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False


class Unigram(Part):
    """SentencePiece's unigram model."""

    type: Literal["Unigram"]
    vocab: Annotated[list[Scored], Field(min_length=1)]
    unk_id: Number | None = None
    byte_fallback: bool = False

    def model_post_init(self, context: Any) -> None:
        """Check that the unknown token is there."""
        if self.unk_id is not None and self.unk_id >= len(self.vocab):
            raise ValueError("unk_id is the number of no token")


class WordLevel(Part):
    """Whole words."""

    type: Literal["WordLevel"]
    vocab: Vocabulary
    unk_token: Token


class AddedToken(Part):
    """A token that is found before all others."""

    content: Token
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class NumberedToken(AddedToken):
    """Such a token in tokenizer.json."""

    id: Number


class TypedToken(AddedToken):
    """Such a token in tokenizer_config.json."""

    kind: Annotated[Literal["AddedToken"] | None, Field(alias="__type")] = None


class Truncation(Part):
    """How long a text may be; every call sets its own."""

    direction: Literal["Left", "Right"] = "Right"
    max_length: Annotated[int, Field(ge=1, le=10**6)]
    strategy: Literal["LongestFirst", "OnlyFirst", "OnlySecond"]
    stride: Literal[0] = 0


class Fixed(Part):
    """A fixed length."""

    Fixed: Annotated[int, Field(ge=1, le=8192)]


class Padding(Part):
    """How texts are made equally long; every call sets its own."""

    strategy: Literal["BatchLongest"] | Fixed
    direction: Literal["Left", "Right"] = "Right"
    pad_to_multiple_of: Annotated[int, Field(ge=1, le=64)] | None = None
    pad_id: Number = 0
    pad_type_id: Number = 0
    pad_token: Token = "[PAD]"


class TokenizerFile(Part):
    """tokenizer.json."""

    version: Literal["1.0"] = "1.0"
    truncation: Truncation | None = None
    padding: Padding | None = None
    added_tokens: Annotated[list[NumberedToken], Field(max_length=_ADDED)] = []
    normalizer: Annotated[Normalizer | Normalizers, Field(discriminator="type")] | None = None
    pre_tokenizer: Annotated[PreTokenizer | PreTokenizers, Field(discriminator="type")] | None = None
    post_processor: Annotated[PostProcessor | PostProcessors, Field(discriminator="type")] | None = None
    decoder: Annotated[Decoder | Decoders, Field(discriminator="type")] | None = None
    model: Annotated[WordPiece | BPE | Unigram | WordLevel, Field(discriminator="type")]


AnyToken: TypeAlias = Token | TypedToken | None
AnyTokens: TypeAlias = Annotated[list[Token | TypedToken], Field(max_length=_ADDED)] | None


class TokenizerConfigFile(Part):
    """tokenizer_config.json."""

    tokenizer_class: Literal[TOKENIZERS]  # type: ignore[valid-type]
    backend: Literal["tokenizers"] = "tokenizers"
    is_local: bool = True
    local_files_only: bool = False
    model_max_length: Annotated[int, Field(ge=1, le=10**31)] | None = None
    model_input_names: Annotated[list[Few | Literal["attention_mask", "token_type_ids"]], Field(max_length=4)] = []
    model_specific_special_tokens: Annotated[dict[Few, AnyToken], Field(max_length=16)] = {}
    bos_token: AnyToken = None
    eos_token: AnyToken = None
    unk_token: AnyToken = None
    sep_token: AnyToken = None
    pad_token: AnyToken = None
    cls_token: AnyToken = None
    mask_token: AnyToken = None
    additional_special_tokens: AnyTokens = None
    extra_special_tokens: AnyTokens = None
    added_tokens_decoder: Annotated[
        dict[Annotated[str, Field(pattern=r"^\d{1,7}$")], AddedToken], Field(max_length=_ADDED)
    ] = {}
    extra_ids: Annotated[int, Field(ge=0, le=1000)] = 100
    pad_token_type_id: Annotated[int, Field(ge=0, le=1)] = 0
    max_length: Annotated[int, Field(ge=1, le=10**6)] | None = None
    pad_to_multiple_of: Annotated[int, Field(ge=1, le=64)] | None = None
    stride: Literal[0] = 0
    padding_side: Literal["left", "right"] = "right"
    truncation_side: Literal["left", "right"] = "right"
    truncation_strategy: Literal["longest_first", "only_first", "only_second", "do_not_truncate"] = "longest_first"
    errors: Literal["replace", "strict", "ignore"] = "replace"
    do_lower_case: bool = True
    keep_accents: bool | None = None
    remove_space: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    clean_up_tokenization_spaces: bool | None = None
    spaces_between_special_tokens: bool = True
    split_special_tokens: bool = False
    add_prefix_space: bool | None = None
    trim_offsets: bool = True


def check_declared(kind: type[BaseModel], value: object) -> None:
    """Raise ValueError with the first thing in a JSON value that a declaration does not allow."""
    try:
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(re.sub(r"\W+", " ", str(part))[:40] for part in first["loc"])
        wrong = "is not known" if first["type"] == "extra_forbidden" else first["msg"].split("\n")[0][:200]
        raise ValueError(f"{where or 'it'}: {wrong}") from None
