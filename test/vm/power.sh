#!/bin/bash
# power.sh [ROUNDS [SEED]]: takes the power from a node at work, 5 times unless ROUNDS says otherwise, and once more
# boots it to check and remove everything. A kubelet and 20 pods run; images are pulled, unpacked, imported and removed,
# pods start and end, berth is restarted and upgraded (power_test.go, power_work_test.go).
# The loss of power is the end of the emulator: the kernel's page cache is lost, the disk is not. The root file system
# is new in each boot; /var/lib/berth, the kubelet's directory and the logs of pods are on a disk of their own.
# out/vm-power has the consoles. A round takes three to five minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5} seed=${2:-$$}
RANDOM=$seed
echo "power: $rounds rounds, seed $seed"
work=$PWD/out/vm-power
./test/vm/prepare.sh "$work" kubelet ./test/vm
mkdir -p "$work/consoles"
rm -f out/vm-power.img
truncate -s 8G out/vm-power.img
mke2fs -q -F -t ext4 -L data out/vm-power.img
export BERTH_VM_DISK=$PWD/out/vm-power.img

boot= # the process of boot.sh
power_off() { # ends the emulator
  [ -s "$work/qemu.pid" ] && kill -9 "$(cat "$work/qemu.pid")" 2>/dev/null
}
trap 'power_off || :; [ -z "$boot" ] || wait "$boot" || :' EXIT
trap 'exit 130' INT TERM
start() { # STEP CONSOLE
  echo "$1" > "$work/steps"
  rm -f "$work/qemu.pid"
  : > "$2"
  setsid ./test/vm/boot.sh "$work" 3600 > "$2" 2>&1 &
  boot=$!
}
failed() { # CONSOLE WHAT
  { grep -E '^(    [a-z_]+\.go:|--- FAIL|vm: |POWER failed)' "$1" | cut -c1-1000 | head -n 40; } || :
  debugfs -R "dump /kubelet/kubelet.log $work/kubelet.log" "$BERTH_VM_DISK" 2>/dev/null
  echo "power: $2; the console is $1, the log of the kubelet $work/kubelet.log"
  exit 1
}
count() { cat "$work"/consoles/* | grep -c "^POWER $1" || :; }

for round in $(seq "$rounds"); do
  console=$work/$(printf 'console-%03d' "$round")
  start power "$console"
  until grep -q '^POWER working' "$console"; do
    kill -0 "$boot" 2>/dev/null || failed "$console" "round $round: the node did not come back"
    sleep 0.2
  done
  sleep $((10 + RANDOM % 40)).$((RANDOM % 10))
  power_off || failed "$console" "round $round: the node ended by itself"
  wait "$boot" || : # 125: it did not end by itself
  if grep -q -e '^--- FAIL' -e '^panic:' -e '^POWER failed' "$console"; then failed "$console" "round $round"; fi
  mv "$console" "$work/consoles/"
  echo "power: round $round of $rounds; acknowledged so far: $(count 'image .*/pulled/') images pulled," \
    "$(count 'image .*/imported/') imported, $(count ended) exits"
done
console=$work/console-last
start power=TestPowerRestored "$console"
wait "$boot" || failed "$console" "the last boot"
for what in 'image .*/pulled/' 'image .*/imported/' ended; do
  [ "$(count "$what")" -gt 0 ] || failed "$console" "nothing was acknowledged of '$what'"
done
echo "power: $rounds losses of power: ok"
