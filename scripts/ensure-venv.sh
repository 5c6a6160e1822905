#!/bin/sh
# Debian keeps `venv` and `ensurepip` in a package of their own.
set -eu
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv
else
  echo "This Python has no venv module. On Debian: sudo apt-get install python3-venv" >&2
  exit 1
fi
