"""``python -m eplb`` is the command ``eplb``."""

from __future__ import annotations

import sys

from eplb.cli.main import main

sys.exit(main())
