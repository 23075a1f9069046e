"""``python -m suffixsvc_cli``: the command line where the script is not on the PATH."""

import sys

from suffixsvc_cli import main

sys.exit(main())
