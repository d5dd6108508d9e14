package systemd

// dockerRuntime is runc for hosts on which root does not have CAP_SYS_RESOURCE: it leaves out the
// lowered oom_score_adj that docker's containers request and such a host cannot give. On other
// hosts it is runc.
const dockerRuntime = `#!/bin/bash
set -euo pipefail
readonly resource=24
if ! (( ($(sed -n 's/^CapBnd:\s*/0x/p' /proc/self/status) >> resource) & 1 )); then
  bundle=. key=''
  for arg in "$@"; do
    case $key in --bundle | -b) bundle=$arg ;; esac
    key=$arg
  done
  [ ! -f "$bundle/config.json" ] || sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$bundle/config.json"
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
