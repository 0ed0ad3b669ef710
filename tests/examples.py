"""The examples that the slow tier draws for a property; `make properties` draws 20,000."""

import os

EXAMPLES = int(os.environ.get("EXAMPLES", "1000"))
