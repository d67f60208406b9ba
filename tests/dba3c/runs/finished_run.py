"""A run that has ended well."""

from dba3c.runs.folder import RunFolder

CONFIG = {"environment": {"env_id": "CartPole-v1"}}


def finished_run(path):
    run = RunFolder.create(path, CONFIG)
    run.end_life("finished", "the stop score was reached")
    run.release()
    return run
