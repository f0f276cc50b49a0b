# Sourced by scripts/demo, scripts/test and others: makes the checkout's own environment in .venv, and keeps it current.
# Nothing is written outside .venv: no pip cache, no compiled files beside the sources.
# shellcheck shell=bash

checkout=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=$checkout/.venv
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
export PYTHONPYCACHEPREFIX=$venv/pycache

say() { printf '%s\n' "$*" >&2; }

# Can this Python make an environment that runs Postmaster?
python_will_do() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# Print a Python 3.11 or newer: $PYTHON, else from PATH, else from the places where one is often put beside an old
# python3.
find_python() {
    local directory candidate version
    if [ -n "${PYTHON:-}" ]; then
        python_will_do "$PYTHON" && printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3 python3.{11..19} python; do
        if command -v "$candidate" >/dev/null && python_will_do "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    for directory in /usr/local/bin /usr/bin /opt/bin /opt/*/bin /opt/python/*/bin /opt/homebrew/bin \
        "${HOME:-/nowhere}"/.local/bin "${HOME:-/nowhere}"/.pyenv/versions/*/bin; do
        for version in 3.{11..19} 3; do
            candidate=$directory/python$version
            if [ -x "$candidate" ] && python_will_do "$candidate"; then
                printf '%s\n' "$candidate"
                return
            fi
        done
    done
    return 1
}

# Say why there is no Python to be had.
no_python() {
    say "Postmaster needs Python 3.11 or newer with its venv module, and none was found"
    say "(tried \$PYTHON, python3, python3.11 and newer, in PATH and the usual places)."
    say "On Debian or Ubuntu: apt-get install python3.11-venv. Elsewhere: name one with PYTHON=/path/to/python3.11"
}

# Print what an installation depends on, so that a change of it is seen.
fingerprint() { cksum <"$checkout/pyproject.toml"; }

# install WHAT PACKAGE...: pip install the packages into .venv unless the stamp called WHAT says it was done.
install() {
    local stamp=$venv/installed-$1
    shift
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ]; then
        return
    fi
    say "installing into .venv (once) ..."
    "$venv/bin/python" -m pip install -qq "$@"
    fingerprint >"$stamp"
}

# group NAME: print the packages of a dependency group. Their names stand in one place, pyproject.toml; the pip of a fresh
# environment may be too old to read a group by itself.
group() {
    (cd -- "$checkout" && "$venv/bin/python" - "$1") <<'PYTHON'
import sys
import tomllib

with open("pyproject.toml", "rb") as stream:
    print(*tomllib.load(stream)["dependency-groups"][sys.argv[1]], sep="\n")
PYTHON
}

# Can .venv be used as it is? It must run, be new enough, and have been made here: its scripts hold its path.
environment_will_do() {
    [ -f "$venv/pyvenv.cfg" ] && python_will_do "$venv/bin/python" &&
        [ "$(cat "$venv/made-in" 2>/dev/null || printf '%s' "$checkout")" = "$checkout" ]
}

# Make .venv with the package in it, from the sources as they are (an editable install: they stay current).
make_environment() {
    local python
    if ! environment_will_do; then
        python=$(find_python) || {
            no_python
            return 69
        }
        say "making .venv with $python ($("$python" --version 2>&1)) ..."
        "$python" -m venv --clear "$venv"
        printf '%s\n' "$checkout" >"$venv/made-in"
    fi
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null
    if ! "$venv/bin/postmaster" --version >/dev/null 2>&1; then
        rm -f "$venv"/installed-*
    fi
    install package --editable "$checkout"
}

# Install what the tests need.
install_test_tools() {
    group dev >"$venv/test-requirements.txt"
    install tests --requirement "$venv/test-requirements.txt"
}
