#!/usr/bin/env bash
# Make .venv and install dsched into it, as an editable install.
#
#   scripts/set_up.sh          what dsched needs to run
#   scripts/set_up.sh test     that, and what its tests need
#
# The Makefile calls this only when setup.cfg, pyproject.toml or this file is newer than the stamp left by the last call.
set -euo pipefail
cd "$(dirname "$0")/.."

extra=${1:-}
oldest='(3, 11)'

give_up() {
    echo "dsched: $*" >&2
    exit 1
}

is_new_enough() {
    "$1" -c "import sys; sys.exit(sys.version_info < $oldest)" 2>/dev/null
}

makes_venvs() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# Print the first interpreter that passes each of the given checks.
find_python() {
    local candidate check
    for candidate in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3; do
        for check in "$@"; do
            "$check" "$candidate" || continue 2
        done
        echo "$candidate"
        return
    done
    return 1
}

# Install a package of Debian or Ubuntu. $2 says what is wrong without it.
install_package() {
    command -v apt-get >/dev/null || give_up "$2; install $1, then repeat."
    [ "$(id -u)" = 0 ] || give_up "$2; run: sudo apt-get install $1"
    echo "Installing $1"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1"; } >/dev/null ||
        give_up "apt-get could not install $1; install it by hand, then repeat."
}

# Debian and Ubuntu ship ensurepip in a package of its own.
install_venv_package() {
    local package
    package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    install_package "$package" "$1 cannot make virtual environments"
}

# The tests start a server of their own; that of the package, if it starts, is stopped and not used. A server elsewhere,
# named by DSCHED_TEST_MYSQL_URL, does not replace it: some tests kill theirs.
has_mariadb() {
    PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v mariadbd >/dev/null
}
if [ "$extra" = test ] && ! has_mariadb; then
    install_package mariadb-server "the tests need mariadbd"
    if command -v systemctl >/dev/null && systemctl is-system-running >/dev/null 2>&1; then
        systemctl disable --now mariadb >/dev/null 2>&1 || true
    fi
fi

# The commands of the README are run as they stand.
if [ "$extra" = test ] && ! command -v curl >/dev/null; then
    install_package curl "the tests need curl"
fi

if ! { is_new_enough .venv/bin/python && .venv/bin/python -m pip --version; } >/dev/null 2>&1; then
    if ! python=$(find_python is_new_enough makes_venvs); then
        python=$(find_python is_new_enough) ||
            give_up "needs Python 3.11 or newer; on Debian or Ubuntu run: apt-get install python3 python3-venv"
        install_venv_package "$python"
    fi
    echo "Making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi

echo "Installing dsched${extra:+ with what its tests need} into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extra:+[$extra]}" ||
    give_up "pip could not install the packages (its reason is above)."

touch .venv/ready ${extra:+".venv/ready-$extra"}
