"""What a file system refuses: one line, and nothing is left of it."""

import errno
import os

import pytest

from dba3c.errors import UserError
from dba3c.runs.files import write_atomically, write_once
from tests.refusals import refusing

WRITERS = pytest.mark.parametrize("write", [write_atomically, write_once])


refuse = refusing(errno.EROFS)


@WRITERS
def test_a_file_in_a_folder_s_place_is_one_line(tmp_path, write):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write .*stop.json: Not a directory"):
        write(tmp_path / "file" / "stop.json", "{}")


@WRITERS
def test_a_disk_that_has_become_read_only_is_one_line(tmp_path, monkeypatch, write):
    for name in ("open", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(UserError, match="cannot write .*stop.json: Read-only file system"):
        write(tmp_path / "stop.json", "{}")


@WRITERS
def test_what_cannot_take_its_place_is_one_line_and_leaves_the_old_content_and_nothing_else(
    tmp_path, monkeypatch, write
):
    for name in ("link", "replace"):
        monkeypatch.setattr(os, name, refuse)
    (tmp_path / "old.json").write_text("old")
    with pytest.raises(UserError, match="cannot write .*old.json: Read-only file system"):
        write(tmp_path / "old.json", "new")
    assert (tmp_path / "old.json").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_link_that_nfs_has_made_and_denies_was_made(tmp_path, monkeypatch):
    link = os.link

    def repeated(*paths: object) -> None:
        link(*paths)
        link(*paths)

    monkeypatch.setattr(os, "link", repeated)
    assert write_once(tmp_path / "stop.json", "first")
    monkeypatch.setattr(os, "link", link)
    assert not write_once(tmp_path / "stop.json", "second")
    assert (tmp_path / "stop.json").read_text() == "first" and len(list(tmp_path.iterdir())) == 1


def test_without_hard_links_the_first_writer_wins_too(tmp_path, monkeypatch):
    no_links = refusing(errno.EPERM)

    monkeypatch.setattr(os, "link", no_links)
    assert write_once(tmp_path / "stop.json", "first") and not write_once(tmp_path / "stop.json", "second")
    assert (tmp_path / "stop.json").read_text() == "first" and len(list(tmp_path.iterdir())) == 1
