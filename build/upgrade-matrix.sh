#!/bin/bash
# upgrade-matrix.sh: upgrades this berth to each of the last three releases and back, ten times under
# load (TestUpgradeLong), and prints a table for docs/packages.md. BERTH_BIN has the binaries.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${BERTH_BIN:?}" "${TEST_TAGS:?}"
out=$PWD/out/releases
mkdir -p "$out"
cgroups=v1
[ ! -e /sys/fs/cgroup/cgroup.controllers ] || cgroups=v2
go test -c -tags "e2e integration $TEST_TAGS" -o "$out/e2e.test" ./test/e2e
now=$("$BERTH_BIN/berth" version)
failed=0 rows=''
while read -r version commit date _; do
  ./build/at.sh "$version" "$out/$version"
  log=$out/$version.log result=passed
  echo "upgrade-matrix: between this berth and $version"
  # The package's tests read paths relative to their directory.
  (cd test/e2e && BERTH_BEFORE=$out/$version "$out/e2e.test" -test.count=1 -test.timeout 2h -test.v -test.run '^TestUpgradeLong$') > "$log" 2>&1 || { result="FAILED, see $log"; failed=1; }
  ! grep -q '^--- SKIP' "$log" || { result="skipped: $(grep -m1 -o 'needs ability.*' "$log")"; failed=1; }
  count() { grep -c "upgraded to $1\$" "$log" || :; }
  rows+="| $version (${commit:0:12}, $date) | $cgroups | $(count "$out/$version") | $(count "$BERTH_BIN") | $result |"$'\n'
done < <(grep '^v' build/releases.txt | tail -n 3)
echo
echo "This berth: $now"
echo
echo "| release | cgroups | downgrades to it | upgrades from it | result |"
echo "|---|---|---|---|---|"
printf '%s' "$rows"
exit $failed
