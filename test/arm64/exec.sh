#!/bin/bash
# exec.sh PROGRAM ARGUMENT...: runs a program of arm64 by qemu, with the programs that it starts, such as itself. The
# kernel learns to start them in a user namespace of its own (Linux 6.7), so nothing of this machine changes. The
# program is not root: qemu has no namespaces, filters and mounts. All processes end with it. QEMU is the emulator, a
# static program.
set -euo pipefail
[ "$(uname -m)" != aarch64 ] || exec "$@"
registration=':arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"${QEMU:-/usr/bin/qemu-aarch64-static}:F"
export REGISTRATION=$registration
exec unshare --user --map-root-user --mount --pid --fork --kill-child --mount-proc bash -euc '
  mount -t binfmt_misc none /proc/sys/fs/binfmt_misc || {
    echo "arm64: the kernel has no binfmt_misc for a user namespace: Linux 6.7 or later is needed" >&2
    exit 1
  }
  printf %s "$REGISTRATION" > /proc/sys/fs/binfmt_misc/register
  unset REGISTRATION
  # This shell is the init of the PID namespace, not the program.
  code=0
  unshare --user --map-user=1000 --map-group=1000 "$@" || code=$?
  exit $code' bash "$@"
