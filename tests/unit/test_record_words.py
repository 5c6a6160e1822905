"""Signs for frequent words: nothing is lost, whatever a counter is called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.ids import is_valid_id
from extproc.stores.record_words import SIGNS, lengthen, shorten

# Characters of ids, what a record has between them, and the words themselves, also in odd places.
PIECES = st.sampled_from([*"aZ9._:-|;{}", *SIGNS, "user", ".rpm", "rpm."])


@given(st.lists(PIECES).map("".join))
def test_what_was_shortened_is_the_same_again(text: str) -> None:
    short = shorten(text)
    assert lengthen(short) == text
    assert len(short) <= len(text)


def test_no_sign_can_stand_in_a_name() -> None:
    signs = list(SIGNS.values())
    assert len(set(signs)) == len(signs)
    for sign in signs:
        assert len(sign) == 1
        assert not is_valid_id(sign)
        assert sign not in "|;{}"
        with pytest.raises(ValueError, match="character"):
            shorten(f"mr|:p.rpm.user:a{sign}b")


def test_an_older_record_is_read_as_it_is() -> None:
    assert lengthen("mr|:p.rpm.user:alice:") == "mr|:p.rpm.user:alice:"
