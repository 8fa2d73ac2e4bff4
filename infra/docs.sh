#!/usr/bin/env bash
# Builds the documentation into build/site, after `make setup`. Its tools live in an environment of their own: they want
# other versions of packages that the product pins.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(bash infra/tools.sh docs)

.venv/bin/python docs/site/reference.py --check
# The theme names its successor at every build; when its support ends is no fault of a page.
NO_MKDOCS_2_WARNING=1 $tools/bin/python -m mkdocs --quiet build --strict --clean --config-file docs/site/mkdocs.yml
echo "docs: build/site/index.html"
