"""What runs: stages, flows, the command line."""

import os

# A flow without a server starts one for itself. Prefect reads this when it is first imported; its own 20 seconds are
# too few on a machine that is busy.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
