"""What a command would write is looked at before it works."""

import pytest

from eplb.cli.targets import check_writable
from eplb.errors import FileError


def test_a_new_file_and_an_old_one_that_nobody_reads_may_be_written(tmp_path):
    """Beside inputs that are there, missing, or not given."""
    (tmp_path / "old").write_text("old")
    (tmp_path / "input").write_text("input")
    for name in ("new", "old"):
        check_writable(tmp_path / name, (tmp_path / "input", tmp_path / "missing", None))


def test_an_input_is_known_by_every_name_of_it(tmp_path):
    """By another path, a link, or a second name of the same file."""
    (tmp_path / "input").write_text("input")
    (tmp_path / "link").symlink_to("input")
    (tmp_path / "twin").hardlink_to(tmp_path / "input")
    (tmp_path / "sub").mkdir()
    for target in ("input", "link", "twin", "sub/../input"):
        with pytest.raises(FileError, match="is read by this command and would be lost"):
            check_writable(tmp_path / target, (tmp_path / "input",))


def test_a_file_without_a_folder_is_refused(tmp_path):
    """Also where a file stands in the folder's place."""
    (tmp_path / "file").write_text("")
    for folder in ("none", "file"):
        with pytest.raises(FileError, match="there is no folder"):
            check_writable(tmp_path / folder / "new")
