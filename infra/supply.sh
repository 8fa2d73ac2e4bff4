#!/usr/bin/env bash
# What the image is made of: `sbom` writes it down (CycloneDX 1.6, build/sbom-cpu.json and -gpu.json) without any network;
# `audit` looks the packages up among known vulnerabilities: PyPI's, those of AUDIT_OSV_URL (a mirror of OSV), or in the file
# AUDIT_OSV_DUMP (OSV's all.zip of PyPI; needs no network). It ends with 1 where there is one that is not in
# infra/deploy/lock/ignored-advisories.lst, and with 3 where nothing could be looked up. Its tools have an environment of their own.
# usage: infra/supply.sh sbom|audit
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in sbom | audit) ;; *)
  echo "usage: infra/supply.sh sbom|audit" >&2
  exit 2
  ;;
esac
tools=$(bash infra/tools.sh supply)
ignored=infra/deploy/lock/ignored-advisories.lst

sbom() { # of a kind
  "$tools/bin/cyclonedx-py" requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
    --of JSON -o "build/sbom-$1.json" "infra/deploy/lock/$1.txt"
  echo "supply: build/sbom-$1.json"
}

audit() { # of a kind
  local lock=infra/deploy/lock/$1.txt
  if [ -n "${AUDIT_OSV_DUMP:-}" ]; then
    "$tools/bin/python" tools/advisories.py "$lock" $ignored --dump "$AUDIT_OSV_DUMP"
    return
  fi
  local service=(--vulnerability-service pypi)
  if [ -n "${AUDIT_OSV_URL:-}" ]; then service=(--vulnerability-service osv --osv-url "$AUDIT_OSV_URL"); fi
  # Its status is 1 both where it finds something and where the service is away: what it printed tells which.
  { "$tools/bin/pip-audit" --disable-pip --require-hashes --progress-spinner off --format json "${service[@]}" -r "$lock" || true; } |
    "$tools/bin/python" tools/advisories.py "$lock" $ignored
}

status=0
for kind in cpu gpu; do
  "$1" "$kind" || { this=$?; [ $status -eq 1 ] || status=$this; }
done
exit $status
