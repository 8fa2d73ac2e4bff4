#!/bin/sh
# Runs a command with variables from files: NAME_FILE=/run/secrets/x gives NAME its contents. So secrets stand neither in the
# composition nor in what `docker inspect` shows. Other variables that end with _FILE stay as they are.
# usage: with-secrets.sh COMMAND ARGUMENT...
set -eu
secrets=${SECRETS_FOLDER:-/run/secrets}/
for pair in $(env | grep -o '^[A-Z0-9_]*_FILE=.*' || true); do
  name=${pair%%=*}
  file=${pair#*=}
  case $file in
    "$secrets"*) ;;
    *) continue ;;
  esac
  [ -r "$file" ] || { echo "with-secrets: $name: $file cannot be read" >&2; exit 2; }
  export "${name%_FILE}=$(cat "$file")"
  unset "$name"
done
if [ -n "${POSTGRES_PASSWORD:-}" ] && [ -n "${POSTGRES_HOST:-}" ]; then # one URL holds it for Prefect
  export PREFECT_SERVER_DATABASE_CONNECTION_URL="postgresql+asyncpg://prefect:$POSTGRES_PASSWORD@$POSTGRES_HOST:5432/prefect"
  unset POSTGRES_PASSWORD
fi
exec "$@"
