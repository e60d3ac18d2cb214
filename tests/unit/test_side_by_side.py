"""How files are dealt out to the processes that run the unit tests, and what their ends make."""

from pathlib import Path

from tests.side_by_side import dealt, status_of


def test_each_file_is_in_one_part_and_parts_are_of_much_the_same_size(tmp_path: Path) -> None:
    files = [tmp_path / f"test_{size}.py" for size in (9, 7, 6, 5, 2, 1)]
    for file in files:
        file.write_bytes(b"#" * int(file.stem.removeprefix("test_")))
    # 9, then 7; 6 to the 7, 5 to the 9; at 14 and 13 the 2 goes to the 13, and at 14 and 15 the 1 to the 14.
    one, two = dealt(files, 2)
    assert [file.stem for file in one] == ["test_9", "test_5", "test_1"]
    assert [file.stem for file in two] == ["test_7", "test_6", "test_2"]
    assert dealt(files[:1], 4) == [files[:1]]


def test_one_process_that_fails_fails_all() -> None:
    assert status_of([0, 0]) == 0
    assert status_of([0, 1]) == status_of([1, 2]) == 1
    assert status_of([0, -11, 1]) == 139  # killed by signal 11
    assert status_of([5, 0]) == 0, "options that leave no test in some files"
    assert status_of([5, 5]) == 5
    assert status_of([5, 1]) == 1
