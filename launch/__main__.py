"""``python -m launch train …``: what a study starts, and who has not installed it. In a folder with a launch.py of the
user's that is their file: launchers are told ``dba3c train …`` (``torchrun --nnodes 4 --no-python dba3c train …``)."""

import sys

from launch.cli.main import main

sys.exit(main())
