#!/bin/sh
# Installs the berth of this directory, upgrades an installed one, or removes it. Every file is
# compared with SHA256SUMS first.
set -eu

usage() {
  cat << 'END'
usage: ./install.sh [--prefix DIR] [--destdir DIR] [--uninstall]

  --prefix DIR    where bin, lib and share are (default /usr/local)
  --destdir DIR   the root directory of an image: files only, no service of this machine
  --uninstall     stop the daemon and remove the files; pods, configuration and state stay
END
}

prefix=/usr/local destdir= uninstall=
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) prefix=${2:?--prefix needs a directory}; shift ;;
    --destdir) destdir=${2:?--destdir needs a directory}; shift ;;
    --uninstall) uninstall=yes ;;
    -h | --help) usage; exit 0 ;;
    *) echo "install.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
case $prefix in
  /*) ;;
  *) echo "install.sh: --prefix $prefix is not absolute" >&2; exit 2 ;;
esac

cd "$(dirname "$0")"
if ! sha256sum -c SHA256SUMS > /dev/null; then
  echo "install.sh: a file differs from SHA256SUMS; nothing was changed. Download the archive again" >&2
  exit 1
fi
. ./services.sh
PATH=$destdir$prefix/bin:$PATH

# files and links list what is installed below the prefix.
files() { cut -c67- SHA256SUMS | grep -E '^(bin|lib|share)/'; }
links() { find bin lib share -type l; }

if [ -n "$uninstall" ]; then
  [ -n "$destdir" ] || berth_removing
  { files; links; } | while read -r file; do rm -f "$destdir$prefix/$file"; done
  # rmdir leaves directories with other files.
  for dir in lib/berth/cni lib/berth share/doc/berth/examples/metrics share/doc/berth/examples share/doc/berth; do
    rmdir "$destdir$prefix/$dir" 2> /dev/null || :
  done
  [ -n "$destdir" ] || berth_removed
  echo "berth is removed. /etc/berth and /var/lib/berth stay"
  exit 0
fi

upgrade=
[ ! -e "$destdir$prefix/bin/berth-supervisor" ] || upgrade=yes
files | while read -r file; do
  to=$destdir$prefix/$file
  mkdir -p "$(dirname "$to")"
  # A program that runs is replaced, not written into.
  case $file in
    bin/* | lib/berth/*) cp "$file" "$to.new" && chmod 755 "$to.new" ;;
    *.service) sed "s#@BINDIR@#$prefix/bin#" "$file" > "$to.new" && chmod 644 "$to.new" ;;
    *) cp "$file" "$to.new" && chmod 644 "$to.new" ;;
  esac
  mv "$to.new" "$to"
done
links | while read -r link; do ln -sfn "$(readlink "$link")" "$destdir$prefix/$link"; done
if [ ! -e "$destdir/etc/berth/berth.toml" ]; then
  mkdir -p "$destdir/etc/berth"
  cp etc/berth.toml "$destdir/etc/berth/berth.toml"
  chmod 644 "$destdir/etc/berth/berth.toml"
fi
[ -z "$destdir" ] || exit 0
if [ -n "$upgrade" ]; then berth_upgraded; else berth_installed; fi
