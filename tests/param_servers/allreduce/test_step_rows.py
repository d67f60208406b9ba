import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from param_servers.allreduce.step_rows import MOST_DATA_POINTS, ROW_NUMBERS, StepRow, read_rows, write_rows
from param_servers.errors import ParamServersError


@given(
    st.lists(
        st.builds(
            StepRow, st.integers(0, MOST_DATA_POINTS), st.booleans(), st.booleans(), st.integers(0, 255),
            st.integers(0, 65535),
        ),
        min_size=1, max_size=5,
    ),
    st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_the_sum_of_rows_hands_every_row_to_everybody_exactly(rows, dtype):
    total = torch.zeros(len(rows), ROW_NUMBERS, dtype=dtype)
    for rank, row in enumerate(rows):
        own = torch.empty(len(rows), ROW_NUMBERS, dtype=dtype)
        write_rows(own, rank, row)
        total += own
    assert read_rows(total) == rows


def test_a_row_refuses_more_data_points_than_it_holds():
    with pytest.raises(ParamServersError, match="one gradient over 16777216 data points"):
        write_rows(torch.zeros(1, ROW_NUMBERS), 0, StepRow(MOST_DATA_POINTS + 1, False, False, 0, 0))
