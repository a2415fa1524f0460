#!/bin/sh
# Installs Ortolan and a bundle from this folder alone, without a network: ./install [PREFIX]
#
# PREFIX (default /opt/ortolan) becomes a virtual environment; the bundle goes to PREFIX/bundle. A
# second run replaces both, the bundle at once. PYTHON names the interpreter (default python3).
set -eu

fail() {
    echo "install: error: $1" >&2
    exit 1
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
prefix=${1:-/opt/ortolan}
python=${PYTHON:-python3}

# What the archive was made for.
machine='@MACHINE@'
glibc='@GLIBC@'
pythons='@PYTHONS@'

(cd "$here" && sha256sum --check --strict --quiet SHA256SUMS) >&2 ||
    fail "a file is not what was packed; copy the archive again"

found=$(uname -m)
[ "$found" = "$machine" ] || fail "this archive is for $machine, this machine is $found"
found=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2) || found=''
[ -n "$found" ] || fail "this archive needs glibc $glibc or newer, and there is none (musl has no wheels)"
[ "$(printf '%s\n%s\n' "$glibc" "$found" | sort -V | head -n 1)" = "$glibc" ] ||
    fail "this archive needs glibc $glibc or newer, this machine has $found"
command -v "$python" >/dev/null || fail "there is no $python; install Python, or name it with PYTHON="
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case " $pythons " in
*" $found "*) ;;
*) fail "this archive is for Python $pythons, $python is $found; name another with PYTHON=" ;;
esac

# Without pip: Debian leaves ensurepip out of its Python, and the server needs none.
"$python" -m venv --without-pip --upgrade "$prefix" || fail "the environment $prefix cannot be made"
pip=$(echo "$here"/wheels/pip-*.whl)
"$prefix/bin/python" "$pip/pip" --python "$prefix/bin/python" install --quiet \
    --disable-pip-version-check --no-cache-dir --no-index --find-links "$here/wheels" \
    --upgrade --root-user-action=ignore 'ortolan[cpu]' || fail "pip could not install the wheels"

rm -rf "$prefix/.bundle.new" "$prefix/.bundle.old"
cp -R "$here/bundle" "$prefix/.bundle.new"
[ ! -e "$prefix/bundle" ] || mv "$prefix/bundle" "$prefix/.bundle.old"
mv "$prefix/.bundle.new" "$prefix/bundle"
rm -rf "$prefix/.bundle.old"

"$prefix/bin/ortolan" --version >&2
echo "serve it with: $prefix/bin/ortolan serve $prefix/bundle --offline"
