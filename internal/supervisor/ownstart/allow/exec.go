package allow

import "github.com/opencontainers/runtime-spec/specs-go"

// FastExec reports whether berth's own child can become the process of an exec. What the container's
// state says is checked apart. The reason says why not, for people.
func FastExec(p *specs.Process) (ok bool, reason string) {
	if reason := process(&specs.Spec{Process: p}); reason != "" {
		return false, reason
	}
	return true, ""
}
