#!/usr/bin/env bash
# Builds the documentation into build/site, after `make setup`. Its tools live in an environment of their own: they want
# other versions of packages that the product pins.
set -euo pipefail
cd "$(dirname "$0")/.."

lock=infra/deploy/lock/docs.txt
tools=build/docs-env
now=$(cksum <"$lock")
if [ "$(cat $tools/.lock 2>/dev/null)" != "$now" ]; then
  echo "docs: tools into $tools"
  if [ -x .venv/bin/uv ]; then # where set-up found it; what pip is configured to use is handed over
    eval "$(.venv/bin/python infra/uv_settings.py)"
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python $tools
    .venv/bin/uv pip install --quiet --python $tools/bin/python --no-deps --require-hashes --only-binary :all: -r $lock
  else
    .venv/bin/python -m venv --clear $tools
    $tools/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes --only-binary :all: -r $lock
  fi
  echo "$now" >$tools/.lock
fi

.venv/bin/python docs/site/reference.py --check
# The theme names its successor at every build; when its support ends is no fault of a page.
NO_MKDOCS_2_WARNING=1 $tools/bin/python -m mkdocs --quiet build --strict --clean --config-file docs/site/mkdocs.yml
echo "docs: build/site/index.html"
