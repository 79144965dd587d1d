# Shared by scripts/demo and scripts/test: an own .venv with what pyproject names. Sourced, with $ROOT set.
# PIP_* settings (index, certificates, wheels) are pip's own and are respected.

say() { printf '== %s\n' "$*" >&2; }

as_root_on_debian() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# apt_need COMMAND:PACKAGE ... installs the packages whose command is missing; only as root on Debian or Ubuntu
apt_need() {
  local pair missing=()
  for pair in "$@"; do command -v "${pair%%:*}" >/dev/null || [ -x "/usr/sbin/${pair%%:*}" ] || missing+=("${pair##*:}"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  as_root_on_debian || { say "not root on Debian or Ubuntu: ${missing[*]} stay missing"; return 0; }
  say "installing ${missing[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

python_for_venv() {  # the system's python first: test hosts see /usr, not a home folder
  local candidate
  for candidate in ${ORCH_PYTHON:-} /usr/bin/python3 python3 python3.12 python3.11 python3.10; do
    command -v "$candidate" >/dev/null || continue
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
    "$candidate" -c 'import venv, ensurepip' 2>/dev/null || continue
    command -v "$candidate"; return 0
  done
  return 1
}

make_venv() {  # make_venv EXTRA: .venv with pip install -e .[EXTRA], done again when pyproject or the pins change
  local extra=$1 stamp python
  stamp=$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | cksum | tr -d ' ')-$extra
  grep -qxF "$stamp" "$ROOT/.venv/orch-stamp" 2>/dev/null && return 0
  if ! python=$(python_for_venv); then
    as_root_on_debian && { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv >/dev/null; }
    python=$(python_for_venv) || { say "Python 3.10 or later with venv is needed (Debian: apt install python3-venv)"; exit 2; }
  fi
  say "making .venv with $("$python" --version), extra '$extra' (torch is pinned in constraints.txt)"
  [ -x "$ROOT/.venv/bin/python" ] || "$python" -m venv "$ROOT/.venv"
  "$ROOT/.venv/bin/python" -m pip install -q -c "$ROOT/constraints.txt" -e "$ROOT[$extra]"
  echo "$stamp" >> "$ROOT/.venv/orch-stamp"
}
