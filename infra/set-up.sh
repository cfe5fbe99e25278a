#!/usr/bin/env bash
# Build a virtual environment with what requirements.lock names, and the project itself, editable.
#
# Only Python 3.11+ is needed before. uv installs the rest, because it does so in seconds; if it
# can't be had or fails (a mirror that only pip knows), pip does the same, slowly. May be run again
# at any time, also after it was interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}

say() { printf '%s\n' "$*" >&2; }
fail() { say "set-up: $*"; exit 1; }

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if is_new_enough "$name"; then echo "$name"; return; fi
    done
    fail "no Python 3.11 or newer was found (looked for ${PYTHON:-python3, python3.14 to 3.11}).
Install one, or name it: make PYTHON=/path/to/python3.12 ..."
}

make_venv() {
    local python
    python=$(find_python)
    say "set-up: $venv with $("$python" --version)"
    if "$python" -c 'import ensurepip' >/dev/null 2>&1; then
        "$python" -m venv "$venv"
    elif "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --without-pip "$venv"
        "$python" -m pip --python "$venv/bin/python" install -q pip
    else
        fail "$python has neither ensurepip nor pip, so it can't make virtual environments.
On Debian and Ubuntu: apt-get install python3-venv (or python3.11-venv, by version)."
    fi
}

bootstrap_uv() {
    # Of the lock only what it says of uv: the version and its hashes.
    awk '/^[a-z]/ { wanted = /^uv==/ } wanted' requirements.lock >"$venv/uv.lock"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes --no-deps \
        -r "$venv/uv.lock" || return 1
    "$venv/bin/uv" --version >/dev/null
}

with_uv() {
    export VIRTUAL_ENV
    VIRTUAL_ENV=$(cd "$venv" && pwd)
    local index
    # pip's index is uv's too, unless uv was told one.
    index=$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)
    index=${PIP_INDEX_URL:-$index}
    if [ -n "$index" ]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}; fi
    # As pip does: otherwise each process compiles what it imports, if it may not keep it.
    "$venv/bin/uv" pip install --require-hashes --no-deps --build-constraints requirements.lock \
        --compile-bytecode -r requirements.lock &&
        "$venv/bin/uv" pip install -q --no-deps --no-build-isolation --editable .
}

with_pip() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --require-hashes --no-deps \
        -r requirements.lock &&
        "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps \
            --no-build-isolation --editable .
}

if ! is_new_enough "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    make_venv
fi
if ! { bootstrap_uv && with_uv; }; then
    say "set-up: uv couldn't; trying pip"
    with_pip || fail "the packages of requirements.lock couldn't be installed; see above.
Check the network, or pip's settings for your mirror (pip config list), then run make again."
fi
