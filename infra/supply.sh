#!/usr/bin/env bash
# What the image is made of: `sbom` writes it down (CycloneDX 1.6, build/sbom-cpu.json and -gpu.json) without any network,
# `audit` looks the packages up at PyPI's advisories (or at AUDIT_OSV_URL, a mirror of OSV). Its tools live in an environment
# of their own.
# usage: infra/supply.sh sbom|audit
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(bash infra/tools.sh supply)

status=0
for kind in cpu gpu; do
  case ${1:-} in
    sbom)
      $tools/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
        --of JSON -o build/sbom-$kind.json infra/deploy/lock/$kind.txt
      echo "supply: build/sbom-$kind.json"
      ;;
    audit)
      service=(--vulnerability-service pypi)
      if [ -n "${AUDIT_OSV_URL:-}" ]; then service=(--vulnerability-service osv --osv-url "$AUDIT_OSV_URL"); fi
      # Packages that the service does not know are listed as skipped: nothing is said of these.
      $tools/bin/pip-audit --disable-pip --no-deps --require-hashes --progress-spinner off "${service[@]}" \
        -r infra/deploy/lock/$kind.txt || status=1
      ;;
    *)
      echo "usage: infra/supply.sh sbom|audit" >&2
      exit 2
      ;;
  esac
done
exit $status
