package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/errs"
)

const bogusFlag = `2026-11-24T01:00:00.123456789Z stderr F Error: unknown flag: --bogus-flag
2026-11-24T01:00:00.123456790Z stderr F E1124 01:00:00.000000       1 run.go:72] "command failed" err="unknown flag: --bogus-flag"
`

const panicked = `I1124 01:00:00.000000     100 server.go:1] "starting"
panic: cannot go on
goroutine 1 [running]:
main.main()
	/src/main.go:12 +0x1d
`

// TestCrashes: if a part of the control plane or the kubelet crashes repeatedly, create stops
// waiting for kubeadm and quotes its output. If the part only waits for another one, create keeps
// waiting.
func TestCrashes(t *testing.T) {
	const logs = "/var/log/pods/kube-system_kube-apiserver-dev/kube-apiserver"
	for name, c := range map[string]struct {
		parts []string // the answers, in order
		log   string   // which log create reads
		text  string
		want  string // "" if create keeps waiting
	}{
		"an unknown flag": {
			[]string{"kubelet 0\nkube-apiserver 0 no " + logs, "kubelet 0\nkube-apiserver 1 no " + logs},
			logs + "/1.log", bogusFlag,
			"kube-apiserver of dev-control-plane has crashed 2 times; it says:\n  Error: unknown flag: --bogus-flag",
		},
		"a third start": {[]string{"kubelet 0\nkube-apiserver 2 yes " + logs}, logs + "/1.log", bogusFlag, "has crashed 2 times"},
		"the kubelet": {
			[]string{"kubelet 7", "kubelet 8", "kubelet 9"},
			"--unit=kubelet.service",
			"E1124 01:00:00.000000     100 run.go:72] \"command failed\" err=\"unrecognized feature gate: Bogus\"\nkubelet.service: Failed\n",
			"kubelet of dev-control-plane has crashed 2 times; it says:\n  E1124 01:00:00.000000     100 run.go:72] \"command failed\" err=\"unrecognized feature gate: Bogus\"",
		},
		"etcd is not there yet":   {[]string{"kubelet 0\nkube-apiserver 1 no " + logs}, logs + "/1.log", "E1124 01:00:00.000000       1 run.go:72] \"command failed\" err=\"dial tcp: connection refused\"\n", ""},
		"one end":                 {[]string{"kubelet 0\nkube-apiserver 0 no " + logs}, logs + "/0.log", bogusFlag, ""},
		"a kubelet of before":     {[]string{"kubelet 7", "kubelet 8"}, "--unit=kubelet.service", panicked, ""},
		"a log before a process":  {[]string{"kubelet 0\nkube-apiserver 1 no " + logs, "kubelet 0\nkube-apiserver 1 yes " + logs}, logs + "/1.log", bogusFlag, ""},
		"a node that says little": {[]string{""}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := clustertest.New(t)
			clusters, _ := clusters(f)
			clusters.watchPause = time.Millisecond
			f.Waits = func(ctx context.Context) error {
				for ctx.Err() == nil && f.CrashChecks() < len(c.parts)+4 {
					time.Sleep(time.Millisecond)
				}
				// A program that a signal ended reports the signal and not the reason.
				if ctx.Err() != nil {
					return errors.New("signal: killed")
				}
				return nil
			}
			f.Parts, f.CrashLog, f.CrashText = c.parts, c.log, c.text
			_, err := clusters.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "")})
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, errs.State) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v; want %q", err, c.want)
			}
			if err != nil && len(f.Nodes) > 0 {
				t.Errorf("left: %v", inventory.Names(f.Nodes))
			}
		})
	}
}
