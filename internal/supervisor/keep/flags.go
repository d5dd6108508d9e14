package keep

import (
	"flag"
	"fmt"
	"io"

	"github.com/berthrun/berth/internal/errs"
)

// CommandLine returns the arguments of a keeper for a daemon: it ends with the last container.
// more are flags for the supervisor.
func CommandLine(stateDir, cgroup string, more []string) []string {
	args := []string{"keep", "--state", stateDir, "--exit-when-idle"}
	if cgroup != "" {
		args = append(args, "--cgroup", cgroup)
	}
	return append(append(args, "--"), more...)
}

// ParseArgs reads the arguments behind "keep":
//
//	--state DIR [--exit-when-idle] [--cgroup NAME] [-- SUPERVISOR FLAGS]
//
// The supervisor is started as "serve --state DIR [--exit-when-idle] FLAGS", and
// tested as "selftest".
func ParseArgs(args []string) (Options, error) {
	var o Options
	flags := flag.NewFlagSet("keep", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.StateDir, "state", "", "state directory")
	flags.BoolVar(&o.ExitWhenIdle, "exit-when-idle", false, "end when the supervisor has nothing left to do")
	flags.StringVar(&o.Cgroup, "cgroup", "", "cgroup of keeper and supervisor, below the root of each hierarchy")
	if err := flags.Parse(args); err != nil {
		return o, fmt.Errorf("keep: %w: %w", errs.Invalid, err)
	}
	if o.StateDir == "" {
		return o, fmt.Errorf("keep: --state is missing: %w", errs.Invalid)
	}
	o.Args = []string{"serve", "--state", o.StateDir}
	if o.ExitWhenIdle {
		o.Args = append(o.Args, "--exit-when-idle")
	}
	o.Args = append(o.Args, flags.Args()...)
	o.SelfTest = []string{"selftest"}
	return o, nil
}
