package systemd

// dockerRuntime is runc for hosts on which root does not have CAP_SYS_RESOURCE: it leaves out what
// docker's containers request and such a host cannot give (that capability, a lowered
// oom_score_adj). On other hosts it is runc. Machines have no jq.
const dockerRuntime = `#!/bin/bash
set -euo pipefail
readonly resource=24
if ! (( ($(sed -n 's/^CapBnd:\s*/0x/p' /proc/self/status) >> resource) & 1 )); then
  file=config.json key=''
  for arg in "$@"; do
    case $key in
      --bundle | -b) file=$arg/config.json ;;
      --process | -p) file=$arg ;;
    esac
    key=$arg
  done
  [ ! -f "$file" ] || sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/; s/,"CAP_SYS_RESOURCE"//g; s/"CAP_SYS_RESOURCE",//g' "$file"
fi
exec runc "$@"
`

// DockerRuntime writes the OCI runtime that docker needs in a machine, and returns the fields of a
// node file's runtime that choose it.
func (m *Machine) DockerRuntime() string {
	m.t.Helper()
	const at = "/opt/runc-fit"
	m.Write(at, dockerRuntime)
	m.Run("chmod", "755", at)
	return "handlers: [{name: fit, path: " + at + "}], defaultHandler: fit"
}
