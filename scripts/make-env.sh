#!/usr/bin/env bash
# Makes .venv: finds or installs uv, finds a Python 3.12 (or lets uv download one), syncs the locked packages.
# Running it again costs nothing unless the lock or this script changed.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=requirements/dev.txt
stamp=.venv/.synced
wanted=$(cat "$lock" pyproject.toml scripts/make-env.sh | sha256sum)
if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

find_uv() {
  local candidate
  for candidate in "$(command -v uv || true)" "$HOME/.local/bin/uv" "$HOME/.cargo/bin/uv" .venv-uv/bin/uv; do
    if [ -n "$candidate" ] && "$candidate" --version >/dev/null 2>&1; then echo "$candidate"; return; fi
  done
  echo "uv is not installed: putting it into .venv-uv" >&2
  { python3 -m venv .venv-uv && .venv-uv/bin/python -m pip install --quiet uv; } >&2 || {
    echo "make env: uv could not be installed (no network, or python3 has no venv module)." >&2
    echo "  Install it by hand (https://docs.astral.sh/uv) and run make again." >&2
    exit 14
  }
  echo .venv-uv/bin/uv
}

find_python() {
  local candidate
  for candidate in python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python /usr/local/bin/python3.12; do
    if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1; then
      command -v "$candidate"; return
    fi
  done
  echo 3.12
}

uv=$(find_uv)
python=$(find_python)
echo "make env: $("$uv" --version), Python $python" >&2
[ -x .venv/bin/python ] || "$uv" venv --quiet --python "$python" .venv
"$uv" pip sync --quiet --python .venv/bin/python --require-hashes "$lock"
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
echo "$wanted" >"$stamp"
