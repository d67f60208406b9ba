"""Vector environments for the tests that step them."""

import pytest

from dba3c.environments.factory import make_vector_environment


@pytest.fixture
def made():
    """make_vector_environment, and everything it made closed."""
    environments = []

    def make(*args, **kwargs):
        environments.append(make_vector_environment(*args, **kwargs))
        return environments[-1]

    yield make
    for envs in environments:
        envs.close()
