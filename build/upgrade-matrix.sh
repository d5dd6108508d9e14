#!/bin/bash
# upgrade-matrix.sh: upgrades this berth to each of the last three releases and back, under load (TestUpgradeLong), and
# prints a table for docs/packages.md. This machine has one version of cgroups: the tests run on it ten times for each
# release, and in the VM of test/vm with the other version. BERTH_BIN has the binaries. BERTH_UPGRADE_ON=host or =vm
# runs one half; the rows of the other are those of its last run.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${BERTH_BIN:?}" "${TEST_TAGS:?}"
out=$PWD/out/releases
now=$("$BERTH_BIN/berth" version)
mkdir -p "$out"
here=v1 other=v2
[ ! -e /sys/fs/cgroup/cgroup.controllers ] || here=v2 other=v1
mapfile -t releases < <(grep '^v' build/releases.txt | tail -n 3)
names=$(printf '%s\n' "${releases[@]}" | cut -d' ' -f1)
for name in $names; do ./build/at.sh "$name" "$out/$name"; done

on_host() {
  go test -c -tags "e2e integration $TEST_TAGS" -o "$out/e2e.test" ./test/e2e
  for name in $names; do
    echo "upgrade-matrix: between this berth and $name, on cgroup $here"
    echo "$now" > "$out/$name-$here.log"
    # The package's tests read paths relative to their directory.
    (cd test/e2e && BERTH_BEFORE=$out/$name "$out/e2e.test" -test.count=1 -test.timeout 2h -test.v -test.run '^TestUpgradeLong$') >> "$out/$name-$here.log" 2>&1 || :
  done
}

on_vm() {
  for name in $names; do rm -f "$out/$name-$other.log"; done
  echo "upgrade-matrix: in the VM, on cgroup $other"
  BERTH_UPGRADE_RELEASES=$(echo $names) BERTH_VM_CGROUPS=$other BERTH_VM_SECONDS=28800 ./test/vm/run.sh upgrade || :
  for name in $names; do
    ran=out/vm-run-upgrade/out/upgrade-$name.log
    [ ! -e "$ran" ] || { echo "$now" && cat "$ran"; } > "$out/$name-$other.log"
  done
}

failed=0
# row CGROUPS VERSION COMMIT DATE: the line of the table for one log.
row() {
  local cgroups=$1 version=$2 commit=$3 date=$4 log=$out/$2-$1.log result=passed
  if [ ! -e "$log" ]; then
    failed=1
    echo "| $version (${commit:0:12}, $date) | $cgroups | 0 | 0 | did not run |"
    return
  fi
  if [ "$(head -n 1 "$log")" != "$now" ]; then
    result="is that of another berth: $(head -n 1 "$log")"
  elif grep -q '^--- SKIP' "$log"; then
    result="skipped: $(grep -m1 -o 'needs ability.*' "$log")"
  elif ! grep -q '^--- PASS: TestUpgradeLong ' "$log" || ! grep -qx PASS "$log"; then
    result="FAILED, see $log"
  fi
  [ "$result" = passed ] || failed=1
  count() { grep -cE "upgraded to ($1)\$" "$log" || :; }
  echo "| $version (${commit:0:12}, $date) | $cgroups | $(count ".*/releases/$version") | $(count "$BERTH_BIN|/usr/local/bin") | $result |"
}

case ${BERTH_UPGRADE_ON:-both} in
  both) on_host; on_vm ;;
  host) on_host ;;
  vm) on_vm ;;
  *) echo "upgrade-matrix: BERTH_UPGRADE_ON is $BERTH_UPGRADE_ON; want host, vm or both" >&2; exit 2 ;;
esac
echo
echo "This berth: $now"
echo
echo "| release | cgroups | downgrades to it | upgrades from it | result |"
echo "|---|---|---|---|---|"
for cgroups in v1 v2; do
  for release in "${releases[@]}"; do
    read -r version commit date _ <<< "$release"
    row "$cgroups" "$version" "$commit" "$date"
  done
done
exit $failed
