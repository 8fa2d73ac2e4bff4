#!/bin/sh
# Makes the secrets of compose.yaml, each a file that only this user can read; those that are there stay.
# usage: infra/deploy/secrets.sh [FOLDER]      (default: infra/deploy/secrets)
set -eu
umask 077
folder=${1:-$(dirname "$0")/secrets}
mkdir -p "$folder"
random() { LC_ALL=C tr -dc 'A-Za-z0-9' </dev/urandom | head -c 40; }
make() { # FILE TEXT
  [ -s "$folder/$1" ] || printf '%s' "$2" >"$folder/$1"
}
make postgres_password "$(random)"
make prefect_auth "memagent:$(random)"
make ray_token "$(random)"
make metrics_token "$(random)"
make s3_access_key "$(random | head -c 20)"
make s3_secret_key "$(random)"
# One identity, for one bucket; Admin is for making it. On AWS, infra/deploy/s3-policy.json has exactly what is needed.
printf '{"identities": [{"name": "memagent", "credentials": [{"accessKey": "%s", "secretKey": "%s"}], "actions": ["Admin:memagent", "Read:memagent", "Write:memagent", "List:memagent"]}]}' \
  "$(cat "$folder/s3_access_key")" "$(cat "$folder/s3_secret_key")" >"$folder/s3.json"
echo "secrets in $folder"
