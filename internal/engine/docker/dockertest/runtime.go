package dockertest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// runtimeScript is runc for hosts on which root does not have CAP_SYS_RESOURCE: it leaves out
// what a container requests and such a host cannot give (that capability, raised limits, a
// lowered oom_score_adj). On other hosts it is runc.
const runtimeScript = `#!/bin/bash
set -euo pipefail
if (( ($(sed -n 's/^CapBnd:\s*/0x/p' /proc/self/status) >> 24) & 1 )); then
  exec runc "$@"
fi
bundle=. process='' verb='' key=''
for arg in "$@"; do
  case $key in
    --bundle | -b) bundle=$arg ;;
    --process | -p) process=$arg ;;
  esac
  key=$arg
  case $arg in
    create | run | exec) [ -n "$verb" ] || verb=$arg ;;
    --bundle=*) bundle=${arg#*=} ;;
    --process=*) process=${arg#*=} ;;
  esac
done
fit() {
  local text
  text=$(jq -c "$2"' |= (
    (if .capabilities then .capabilities |= map_values(if type == "array" then map(select(. != "CAP_SYS_RESOURCE")) else . end) else . end)
    | del(.rlimits)
    | if (.oomScoreAdj // 0) < 0 then .oomScoreAdj = 0 else . end)' "$1")
  printf '%s\n' "$text" > "$1"
}
case $verb in
  create | run) fit "$bundle/config.json" .process ;;
  exec) [ -z "$process" ] || fit "$process" . ;;
esac
exec runc "$@"
`

// writeRuntime writes the script and returns its path.
func writeRuntime(t testing.TB, dir string) string {
	t.Helper()
	require.Binary(t, "jq")
	require.Binary(t, "runc")
	file := filepath.Join(dir, "runc-fit")
	must(t, os.WriteFile(file, []byte(runtimeScript), 0o700))
	return file
}
