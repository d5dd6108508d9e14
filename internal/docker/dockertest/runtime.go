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

// RuntimeArguments returns the arguments of dockerd that make an engine use the script, which it
// writes into dir. On a host with CAP_SYS_RESOURCE there are none. The script needs bash and jq.
func RuntimeArguments(dir string) ([]string, error) {
	own, err := sysproc.ReadCapabilities()
	if err != nil || slices.Contains(own.Bounding, "CAP_SYS_RESOURCE") {
		return nil, err
	}
	file := filepath.Join(dir, "runc-fit")
	if err := os.WriteFile(file, []byte(runtimeScript), 0o700); err != nil { //nolint:gosec // a program
		return nil, err
	}
	return []string{"--add-runtime", "fit=" + file, "--default-runtime", "fit"}, nil
}

func runtimeArguments(t testing.TB, dir string) []string {
	t.Helper()
	arguments, err := RuntimeArguments(dir)
	must(t, err)
	if len(arguments) > 0 {
		require.Binary(t, "jq")
	}
	return arguments
}
