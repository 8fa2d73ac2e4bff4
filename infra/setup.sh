#!/usr/bin/env bash
# Makes .venv from a hash-pinned lock, with uv; with pip where uv cannot be had. The second call sees that nothing
# changed and ends at once.
# usage: infra/setup.sh [cpu|gpu]    (default: gpu where nvidia-smi works, else cpu)
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-}
if [ -z "$kind" ]; then
  if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then kind=gpu; else kind=cpu; fi
fi
locks=infra/deploy/lock
lock=$locks/$kind.txt
[ -f "$lock" ] || { echo "setup: no lock for '$kind': say cpu or gpu" >&2; exit 2; }

stamp=.venv/.setup
now=$(cat "$lock" pyproject.toml infra/setup.sh | cksum)
if [ -x .venv/bin/memagent ] && [ "$(cat "$stamp" 2>/dev/null)" = "$now" ]; then exit 0; fi

python=""
for candidate in "${PYTHON:-}" python3.11 python3; do
  [ -n "$candidate" ] || continue
  # The lock's hashes are those of the wheels for this version.
  if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    python=$candidate; break
  fi
done
[ -n "$python" ] || { echo "setup: Python 3.11 is needed (as in 'uv python install 3.11'); set PYTHON to its path" >&2; exit 2; }

say() { echo "setup: $*"; }
begun=$SECONDS
say "$kind, $($python --version), about 4 GB into .venv"
# One that another tool made may have no pip, which fetches uv.
.venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }

if pip install --require-hashes --only-binary :all: -r $locks/uv.txt 2>.venv/uv.log; then
  installer=uv
  # uv reads nothing of pip's configuration: index, find-links, certificate and proxy are handed over.
  eval "$(.venv/bin/python tools/uv_settings.py)"
  get() { .venv/bin/uv pip install --quiet --python .venv/bin/python "$@"; }
else
  installer=pip
  say "no uv here ($(tail -n 1 .venv/uv.log)); with pip it takes some minutes"
  get() { pip install "$@"; }
fi

# --no-deps: the lock is whole, and a resolver would bring CUDA builds of torchvision and others that text models do
# not need and that break `import transformers` beside a CPU torch.
part=.venv/part.txt
group() { # NAME PATTERN: installs the packages of the lock whose names match, of those that are left
  awk -v take="$2" '/^[^ ]/ { on = ($0 ~ take) } on' .venv/left.txt > $part
  awk -v take="$2" '/^[^ ]/ { on = ($0 !~ take) } on' .venv/left.txt > .venv/rest.txt && mv .venv/rest.txt .venv/left.txt
  say "$1 ($(grep -c '^[^ ]' $part) packages, by $installer)"
  get --no-deps --require-hashes -r $part "${@:3}"
}
cp "$lock" .venv/left.txt
torch='^(torch|triton|nvidia-[a-z0-9-]+)=='
if [ "$kind" = cpu ]; then # the CPU build is not on PyPI: from where pip is told to look, else from PyTorch's own index
  cp .venv/left.txt .venv/all.txt
  if ! group "PyTorch" "$torch" 2>.venv/torch.log; then
    cp .venv/all.txt .venv/left.txt
    group "PyTorch, from its own index" "$torch" --index-url https://download.pytorch.org/whl/cpu
  fi
else
  group "PyTorch" "$torch"
fi
group "vLLM and what reads models" '^(vllm|transformers|tokenizers|safetensors|deepspeed|xgrammar|numba|llvmlite|mistral|opencv|outlines|compressed)'
group "Ray, Prefect, Delta and the rest" '.'
get --no-deps --no-build-isolation --editable .
if [ $installer = uv ]; then # pip compiles what it installs, uv does not
  # Otherwise a process compiles what it imports when it first starts, and at each start where PYTHONDONTWRITEBYTECODE
  # is set, as in many containers: 7 s more for each of an engine's two processes. All 30,000 files take a minute.
  say "bytecode of what is imported"
  for modules in vllm.v1.engine.async_llm,vllm.v1.worker.${kind}_worker prefect.server.api.server,prefect.flow_engine,ray.data,s3fs,pipelines.cli.main,deepspeed; do
    env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c "import $modules" >>.venv/bytecode.log 2>&1 &
  done
  # What a process of Ray's or Prefect's own imports as it goes.
  site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  .venv/bin/python -m compileall -q "$site"/ray/{_private,dashboard,data,autoscaler,core} "$site"/prefect/server \
    "$site"/alembic "$site"/uvicorn memagent infra pipelines >>.venv/bytecode.log 2>&1 &
  wait
fi
rm -f .venv/left.txt $part .venv/all.txt
echo "$now" > "$stamp"
say "done in $((SECONDS - begun)) s. Next: make demo, or .venv/bin/memagent doctor to see what works here"
