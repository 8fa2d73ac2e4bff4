#!/usr/bin/env bash
# Makes an environment of tools that want other versions of packages than the product pins, from their lock; prints its
# folder. Nothing is done where it is up to date.
# usage: infra/tools.sh NAME, for infra/deploy/lock/NAME.txt and build/NAME-env
set -euo pipefail
cd "$(dirname "$0")/.."

lock=infra/deploy/lock/$1.txt
tools=build/$1-env
now=$(cksum <"$lock")
if [ "$(cat "$tools/.lock" 2>/dev/null)" != "$now" ]; then
  echo "$1: tools into $tools" >&2
  if [ -x .venv/bin/uv ]; then # where set-up found it; what pip is configured to use is handed over
    eval "$(.venv/bin/python tools/uv_settings.py)"
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$tools"
    .venv/bin/uv pip install --quiet --python "$tools/bin/python" --no-deps --require-hashes --only-binary :all: -r "$lock"
  else
    .venv/bin/python -m venv --clear "$tools"
    "$tools/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes --only-binary :all: -r "$lock" >&2
  fi
  echo "$now" >"$tools/.lock"
fi
echo "$tools"
