"""Who holds a run folder, as its heartbeat tells (more in `test_folder`)."""

import os
import shutil

from dba3c.runs.folder import RunFolder
from dba3c.runs.lock import LOCK_NAME, living_holder


def test_a_copy_of_a_live_run_is_not_live_for_as_long_as_that_one_is(tmp_path):
    with RunFolder.create(tmp_path / "run", {}) as run:
        copy = RunFolder(shutil.copytree(run.path, tmp_path / "copy"))
        assert living_holder(copy.path) is not None  # some file systems number a folder anew
        for folder in (run, copy):
            os.utime(folder.path / LOCK_NAME, (1.0, 1.0))
        assert (run.status(), copy.status()) == ("live", "broken")
        with RunFolder.launch(copy.path, None, resume=True):
            assert (run.status(), copy.status()) == ("live", "live")
