#!/bin/bash
# run.sh PACKAGE...: runs the unit tests of packages as programs of arm64, by qemu (exec.sh), and the programs of BIN.
# cannot.txt lists the tests that cannot pass under qemu, and packages that an old qemu cannot run. A listed test that
# passes is a failure, so the list stays true. QEMU is the emulator, that of the package qemu-user-static by default.
# TEST_TAGS are the tags; BIN has berth and berth-supervisor for arm64; VERBOSE=1 shows each test.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${TEST_TAGS:?}" "${BIN:?}"
root=$PWD list=$PWD/test/arm64/cannot.txt
# qemu is about ten times slower.
export GOARCH=arm64 CGO_ENABLED=1 BERTH_TEST_SLOW=10
if [ "$(uname -m)" != aarch64 ]; then
  export CC=aarch64-linux-gnu-gcc PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

for program in "$BIN/berth version" "$BIN/berth-supervisor --version"; do
  # Words: a program and its argument.
  test/arm64/exec.sh $program || failed=1
done

reasons=
if [ "$(uname -m)" != aarch64 ]; then
  CGO_ENABLED=0 go build -o "$work/old" ./test/arm64/old
  reasons="emulation $(test/arm64/exec.sh "$work/old")"
fi
echo "arm64: reasons why tests of $list cannot run: $reasons"

module=$(go list -m)
packages=$(go list -tags "$TEST_TAGS" -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' "$@")
# run DIR FLAG...: runs the tests of a package in its directory; $work/log has the output.
run() {
  local dir=$1
  shift
  (cd "$dir" && "$root/test/arm64/exec.sh" "$work/package.test" -test.v "$@") < /dev/null > "$work/log" 2>&1
}
while read -r package dir; do
  go test -c -vet=off -tags "$TEST_TAGS" -o "$work/package.test" "$package"
  name=${package#"$module/"} listed=()
  while read -ra line; do
    [[ " $reasons " != *" ${line[1]} "* ]] || listed+=("${line[@]:2}")
  done < <(grep "^$name " "$list" || :)
  if [[ " ${listed[*]} " = *' * '* ]]; then
    echo "arm64: $name: this emulator cannot run it"
    continue
  fi
  begin=$SECONDS skip='^$'
  [ ${#listed[@]} = 0 ] || skip="^($(IFS='|' && echo "${listed[*]}"))\$"
  if run "$dir" -test.skip "$skip" -test.timeout "${TIMEOUT:-10m}"; then
    echo "arm64: $name: ok in $((SECONDS - begin)) s, $(grep -c '^--- PASS' "$work/log" || :) passed, $(grep -c '^--- SKIP' "$work/log" || :) skipped, ${#listed[@]} cannot run"
  else
    failed=1
    echo "arm64: $name: FAILED"
    grep -vE '^ *(=== |--- PASS)' "$work/log" | head -n 400
  fi
  [ -z "${VERBOSE:-}" ] || cat "$work/log"
  for test in "${listed[@]}"; do
    # A test that hangs cannot pass either.
    if run "$dir" -test.run "^$test\$" -test.timeout 20s; then
      failed=1
      echo "arm64: $name: $test passes or is skipped, but $list lists it: remove it there"
    fi
  done
done <<< "$packages"

while read -ra line; do
  for test in "${line[@]:2}"; do
    [ "$test" = '*' ] || grep -qE "^func $test\(" "${line[0]}"/*_test.go || { failed=1; echo "arm64: $list lists ${line[0]} $test, which does not exist"; }
  done
done < <(grep -v '^#' "$list")
exit $failed
