#!/usr/bin/env bash
# Makes .venv from a pinned lock. The second call sees that nothing changed and ends at once.
# usage: infra/setup.sh [cpu|gpu]    (default: gpu where nvidia-smi works, else cpu)
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-}
if [ -z "$kind" ]; then
  if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then kind=gpu; else kind=cpu; fi
fi
lock=infra/deploy/lock/$kind.txt
[ -f "$lock" ] || { echo "setup: no lock for '$kind': say cpu or gpu" >&2; exit 2; }

stamp=.venv/.setup
now=$(cat "$lock" pyproject.toml infra/setup.sh | cksum)
if [ -x .venv/bin/memagent ] && [ "$(cat "$stamp" 2>/dev/null)" = "$now" ]; then exit 0; fi

python=""
for candidate in "${PYTHON:-}" python3.11 python3 python3.12 python3.13; do
  [ -n "$candidate" ] || continue
  if "$candidate" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info < (3, 14)))' 2>/dev/null; then
    python=$candidate; break
  fi
done
[ -n "$python" ] || { echo "setup: Python 3.11 to 3.13 is needed; set PYTHON to its path" >&2; exit 2; }

echo "setup: $kind, $($python --version); a few minutes and about 4 GB once"
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
# --no-deps: the lock is whole, and the resolver would bring CUDA builds of torchvision and others
# that text models do not need and that break `import transformers` beside a CPU torch.
torch=$(grep '^torch==' "$lock")
if [ "$kind" = cpu ] && ! pip install --no-deps "$torch" 2>/dev/null; then
  pip install --no-deps --index-url https://download.pytorch.org/whl/cpu "$torch"
fi
pip install --no-deps --requirement "$lock"
pip install --no-deps --no-build-isolation --editable .
echo "$now" > "$stamp"
echo "setup: done; .venv/bin/memagent doctor says what works here"
