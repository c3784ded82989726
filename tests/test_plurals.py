import pytest

from common.plurals import counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 pictures"), (1, "1 picture"), (2, "2 pictures"), (1800, "1,800 pictures")]
)
def test_the_noun_is_singular_for_1_alone(number: int, text: str) -> None:
    assert counted(number, "picture", ",") == text
