"""``python -m wids`` is the same as the command ``wids``."""

import sys

from wids.cli.main import main

sys.exit(main())
