#!/bin/sh
# Make a headless Chromium available to the browser tests: the system's, else Playwright's, else the
# distribution's package (as root). Prints what the tests will find.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then
        command -v "$name"
        exit 0
    fi
done
if "${PYTHON:-python}" -m playwright install chromium >/dev/null 2>&1; then
    echo "Playwright's own Chromium"
    exit 0
fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
    command -v chromium
    exit 0
fi
echo "no Chromium: install one with your package manager, or run 'playwright install chromium' with a network" >&2
exit 1
