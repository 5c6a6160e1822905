"""Token counts: exact, offline, quick on long runs, and never an exception."""

import random
import string
import subprocess
import sys
import time

import pytest

from extproc.providers import tokens, vocabularies
from extproc.providers.tokens import (
    ENCODING_NAMES,
    SELF_CHECK,
    CountCache,
    TiktokenCounter,
    ToktokCounter,
    count_tokens,
    encoding_for,
    safe_cut,
    warm_up,
)
from extproc.providers.vocabularies import EncodingName, VocabularyError, read_ranks


@pytest.fixture(scope="module", params=ENCODING_NAMES)
def both(request: pytest.FixtureRequest) -> tuple[TiktokenCounter, ToktokCounter]:
    name: EncodingName = request.param
    return TiktokenCounter(name), ToktokCounter(name)


def test_the_recorded_sample_is_what_tiktoken_counts() -> None:
    for column, name in enumerate(ENCODING_NAMES, start=1):
        reference = TiktokenCounter(name)
        assert [reference(row[0]) for row in SELF_CHECK] == [row[column] for row in SELF_CHECK]


def test_both_counters_agree_on_random_mixes(both: tuple[TiktokenCounter, ToktokCounter]) -> None:
    reference, fast = both
    rng = random.Random(11)
    alphabets = [
        string.printable,
        "äöüßéñ",
        "汉字测试文本",
        "😀👩‍👧🏳️‍🌈",
        " \t\r\n\u00a0\u3000",
        "0123456789",
        "_=-/",
    ]
    for _ in range(400):
        text = "".join(rng.choice(rng.choice(alphabets)) for _ in range(rng.randint(0, 300)))
        assert fast(text) == reference(text), repr(text)


@pytest.mark.parametrize(
    ("text", "o200k", "cl100k"),
    [
        ("a" * 100_000, 12500, 12500),
        ("^" * 100_000, 12500, 25000),
        ("_" * 50_000, 782, None),
        ("汉字测试文本长" * 2000, 10000, 14000),
        ("Explain <|endoftext|> and <|im_start|> and <|fim_prefix|> to me", 24, 23),
    ],
    ids=["letters", "carets", "underscores", "cjk", "special"],
)
def test_long_runs_are_exact_and_quick(text: str, o200k: int, cl100k: int | None) -> None:
    warm_up()
    for name, expected in (("o200k_base", o200k), ("cl100k_base", cl100k)):
        started = time.process_time()
        counted = count_tokens(text, name)
        assert time.process_time() - started < 0.2
        if expected is not None:
            assert counted == expected


def test_more_than_a_million_spaces_do_not_panic(
    both: tuple[TiktokenCounter, ToktokCounter],
) -> None:
    reference, fast = both
    text = " " * 1_500_000
    exact = fast(text)
    assert exact <= reference(text) <= exact * 1.01


def test_tiktokens_panic_never_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_TIKTOKEN_PIECE", 10_000_000)
    assert TiktokenCounter("o200k_base")(" " * 1_100_000) == 1_100_000


def test_a_keyboard_interrupt_while_counting_is_not_swallowed() -> None:
    counter = TiktokenCounter("o200k_base")

    def interrupted(text: str) -> list[int]:
        raise KeyboardInterrupt(text)

    counter._encode = interrupted
    with pytest.raises(KeyboardInterrupt):
        counter("x")


def test_lone_surrogates_count_as_the_replacement_character(
    both: tuple[TiktokenCounter, ToktokCounter],
) -> None:
    for counter in both:
        assert counter("broken \ud83d emoji") == counter("broken \ufffd emoji")


@pytest.mark.parametrize("name", ENCODING_NAMES)
def test_cutting_at_a_safe_place_keeps_the_count(name: EncodingName) -> None:
    rng = random.Random(5)
    words = ["the", "it's", "12345", "x=y;", "naïve", "汉字", "foo_bar", "\n\n", "(a", "B)", "  "]
    for _ in range(300):
        text = " ".join(rng.choice(words) for _ in range(60))
        cut = safe_cut(text, 150)
        assert 0 < cut <= 150
        if text[cut] == " " and text[cut - 1].isascii() and text[cut - 1].isalnum():
            parts = count_tokens(text[:cut], name) + count_tokens(text[cut:], name)
            assert parts == count_tokens(text, name)


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo-2024-04-09", "cl100k_base"),
        ("ft:gpt-3.5-turbo:org::id", "cl100k_base"),
        ("gpt-35-turbo", "cl100k_base"),
        ("azure/GPT-4", "cl100k_base"),
        ("text-embedding-3-large", "cl100k_base"),
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-mini", "o200k_base"),
        ("gpt-4.1", "o200k_base"),
        ("gpt-5", "o200k_base"),
        ("o3", "o200k_base"),
        ("llama-4", "o200k_base"),
        ("", "o200k_base"),
    ],
)
def test_the_encoding_follows_the_model(model: str, encoding: str) -> None:
    assert encoding_for(model) == encoding


def test_the_cache_is_bounded_by_bytes_and_answers_like_the_counter() -> None:
    cache = CountCache(max_bytes=10_000)
    for number in range(200):
        text = f"{number} word" * 50
        assert cache.count("o200k_base", text) == count_tokens(text)
        assert cache.used_bytes <= 10_000
    assert cache.count("cl100k_base", "汉字测试文本长" * 20) == 140
    assert cache.count("o200k_base", "汉字测试文本长" * 20) == 100


def test_a_damaged_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = vocabularies._VOCABULARIES["cl100k_base"]
    bad = vocabularies._Vocabulary(sha256="0" * 64, pattern=good.pattern, special_tokens={})
    monkeypatch.setitem(vocabularies._VOCABULARIES, "cl100k_base", bad)
    with pytest.raises(VocabularyError, match="hash"):
        read_ranks("cl100k_base")


def test_a_fast_counter_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "SELF_CHECK", (("hello world", 3, 3),))
    monkeypatch.setattr(tokens, "_counters", {})
    assert set(warm_up().values()) == {"tiktoken"}
    assert count_tokens("hello world") == 2


def test_warm_up_uses_the_fast_counter() -> None:
    assert warm_up() == {"o200k_base": "toktok", "cl100k_base": "toktok"}


# Once a process, so in one of its own. The thread is what holds up the loop of a server.
_LONGEST_GAP = """
import threading, time
from extproc.providers.tokens import ENCODING_NAMES, count_tokens, warm_up
warm_up()
counting = threading.Thread(target=lambda: [count_tokens("x", name) for name in ENCODING_NAMES])
longest, last = 0.0, time.perf_counter()
counting.start()
while counting.is_alive():
    time.sleep(0.001)
    longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
print(longest)
"""


def test_once_warm_no_encoding_is_loaded_while_others_wait() -> None:
    """Loading one takes 0.3 s, in which no other thread runs."""
    shown = subprocess.check_output([sys.executable, "-c", _LONGEST_GAP], text=True)
    assert float(shown) < 0.15
