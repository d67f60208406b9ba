"""Binary planes as bits: 16 planes of a football map are 2 bytes per cell on the wire instead of 16.

Legend: C planes, H and W the map's sides, P = ceil(C / 8) bytes per cell.
"""

from __future__ import annotations

import numpy as np

ON = 255  # what an occupied cell of the map is


def pack_planes(planes: np.ndarray) -> np.ndarray:
    """[..., C, H, W] uint8 of zeros and ones (or 255s) to [..., P, H, W] uint8; the first plane is the highest bit."""
    return np.packbits(planes, axis=-3)


def unpack_planes(packed: np.ndarray, num_planes: int) -> np.ndarray:
    """What `pack_planes` packed: [..., P, H, W] uint8 to [..., C, H, W] uint8 of 0 and 255."""
    return np.unpackbits(packed, axis=-3, count=num_planes) * np.uint8(ON)
