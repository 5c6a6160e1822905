#!/bin/sh
# The tests run against a real MariaDB. They start their own instance in a temporary folder, so only
# the programs are needed; a service that the package may have started is left alone.
set -eu
PATH="$PATH:/usr/sbin:/usr/local/sbin:/opt/homebrew/bin:/usr/local/bin"
[ -n "${TOKENWEIR_TEST_MYSQL_URL:-}" ] && exit 0
command -v mariadbd >/dev/null 2>&1 && exit 0
echo "MariaDB is not installed: installing it for the tests"
if command -v apt-get >/dev/null 2>&1; then
  run=""
  if [ "$(id -u)" != 0 ]; then
    run="sudo -n"
    $run true 2>/dev/null || {
      echo "make test needs mariadb-server: sudo apt-get install mariadb-server" >&2
      echo "(or give a server: TOKENWEIR_TEST_MYSQL_URL=mysql+pymysql://user:password@host/)" >&2
      exit 1
    }
  fi
  $run apt-get update -qq
  $run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq mariadb-server >/dev/null
elif command -v brew >/dev/null 2>&1; then
  brew install --quiet mariadb
else
  echo "make test needs the program mariadbd (package mariadb-server)," >&2
  echo "or TOKENWEIR_TEST_MYSQL_URL=mysql+pymysql://user:password@host/" >&2
  exit 1
fi
