"""``python -m launch train …``, for launchers that start modules: ``torchrun --nnodes 4 -m launch train …``."""

import sys

from launch.cli.main import main

sys.exit(main())
