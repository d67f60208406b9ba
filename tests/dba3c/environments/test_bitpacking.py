"""Binary planes as bits, against bits counted by hand."""

import numpy as np
import pytest

from dba3c.environments.bitpacking import pack_planes, unpack_planes


def test_the_first_plane_is_the_highest_bit_of_the_first_byte():
    planes = np.zeros((16, 1, 1), np.uint8)
    planes[0] = planes[9] = 255
    assert pack_planes(planes)[:, 0, 0].tolist() == [0b1000_0000, 0b0100_0000]


@pytest.mark.parametrize("num_planes", [1, 4, 8, 13, 16])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_packing_and_unpacking_give_back_the_planes(num_planes, batch):
    generator = np.random.default_rng(0)
    planes = generator.integers(2, size=(*batch, num_planes, 5, 7), dtype=np.uint8) * np.uint8(255)
    packed = pack_planes(planes)
    assert packed.shape == (*batch, -(-num_planes // 8), 5, 7)
    assert (unpack_planes(packed, num_planes) == planes).all()
