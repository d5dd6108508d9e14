#!/bin/bash
# run.sh PACKAGE...: runs the unit tests of packages as programs of arm64, by qemu (exec.sh), and the programs of BIN.
# cannot.txt lists the tests that cannot pass under qemu. A listed test that passes is a failure, so the list stays true.
# TEST_TAGS are the tags; BIN has berth and berth-supervisor for arm64; VERBOSE=1 shows each test.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${TEST_TAGS:?}" "${BIN:?}"
root=$PWD
# qemu is about ten times slower.
export GOARCH=arm64 CGO_ENABLED=1 BERTH_TEST_SLOW=10
if [ "$(uname -m)" != aarch64 ]; then
  export CC=aarch64-linux-gnu-gcc PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig
fi
failed=0

for program in "$BIN/berth version" "$BIN/berth-supervisor --version"; do
  echo "arm64: $program"
  # Words: a program and its argument.
  test/arm64/exec.sh $program || failed=1
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
module=$(go list -m)
# run DIR FLAG...: runs the tests of a package in its directory; $work/log has the output.
run() {
  local dir=$1
  shift
  (cd "$dir" && "$root/test/arm64/exec.sh" "$work/package.test" -test.v -test.timeout 10m "$@") > "$work/log" 2>&1
}
while read -r package dir; do
  go test -c -vet=off -tags "$TEST_TAGS" -o "$work/package.test" "$package"
  name=${package#"$module/"}
  mapfile -t listed < <(awk -v name="$name" '$1 == name { print $2 }' test/arm64/cannot.txt)
  begin=$SECONDS
  skip='^$'
  [ ${#listed[@]} = 0 ] || skip="^($(IFS='|' && echo "${listed[*]}"))\$"
  if run "$dir" -test.skip "$skip"; then
    echo "arm64: $name: ok in $((SECONDS - begin)) s, $(grep -c '^--- PASS' "$work/log" || :) passed, $(grep -c '^--- SKIP' "$work/log" || :) skipped, ${#listed[@]} cannot run"
  else
    failed=1
    echo "arm64: $name: FAILED"
    grep -vE '^(=== |--- PASS)' "$work/log" | tail -n 100
  fi
  [ -z "${VERBOSE:-}" ] || cat "$work/log"
  for test in "${listed[@]}"; do
    if run "$dir" -test.run "^$test\$" -test.timeout 1m; then
      failed=1
      echo "arm64: $name: $test passes or is skipped, but test/arm64/cannot.txt lists it: remove it there"
    fi
  done
done < <(go list -tags "$TEST_TAGS" -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' "$@" | sed '/^$/d')

# A line of the list that no package has used.
while read -r name test _; do
  grep -qE "^func $test\(" "$name"/*_test.go || { failed=1; echo "arm64: test/arm64/cannot.txt lists $name $test, which does not exist"; }
done < <(grep -v '^#' test/arm64/cannot.txt)
exit $failed
