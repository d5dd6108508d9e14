package dockertest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// runtimeScript is runc for hosts on which root does not have CAP_SYS_RESOURCE: it leaves out
// what a container requests and such a host cannot give (that capability, raised limits, a
// lowered oom_score_adj). The runc is the first in the engine's PATH.
const runtimeScript = `#!/bin/bash
set -euo pipefail
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
    (if .capabilities then .capabilities |= map_values(arrays -= ["CAP_SYS_RESOURCE"]) else . end)
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

// runtimeArguments makes an engine use the script on hosts that need it.
func runtimeArguments(t testing.TB, dir string) []string {
	t.Helper()
	own, err := sysproc.ReadCapabilities()
	must(t, err)
	if slices.Contains(own.Bounding, "CAP_SYS_RESOURCE") {
		return nil
	}
	require.Binary(t, "jq")
	file := filepath.Join(dir, "runc-fit")
	must(t, os.WriteFile(file, []byte(runtimeScript), 0o700)) //nolint:gosec // a program
	return []string{"--add-runtime", "fit=" + file, "--default-runtime", "fit"}
}
