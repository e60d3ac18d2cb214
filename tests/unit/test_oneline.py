"""One line of text that people give."""

import pytest

from extproc.oneline import one_line


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "--why is empty"),
        (" \t\n", "--why is empty"),
        ("abcdef", "--why has 6 characters; write at most 5"),
        ("a\nb", "--why has a line break"),
        ("a\x1b[", "--why has a line break or a control character"),
    ],
)
def test_what_no_list_could_show_is_refused_with_what_is_wrong(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match="--why") as told:
        one_line(text, 5, "--why")
    assert str(told.value).startswith(fault)


def test_a_line_is_kept_without_the_space_around_it_which_does_not_count() -> None:
    assert one_line("  abcde \n", 5, "--why") == "abcde"
