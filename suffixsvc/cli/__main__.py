"""``python -m suffixsvc.cli``: the same as ``suffixsvc``, where the script is not on the PATH."""

import sys

from suffixsvc.cli import main

sys.exit(main())
