package cluster

import (
	"context"
	"errors"
	"slices"
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

func TestReadParts(t *testing.T) {
	const text = "kubelet 3\netcd 0 yes /var/log/pods/a/etcd\nkube-apiserver 1 no /var/log/pods/b/kube-apiserver\nnoise\nkubelet x\n-1 -1\n"
	want := []part{{"kubelet", 3, false, ""}, {"etcd", 0, true, "/var/log/pods/a/etcd"}, {"kube-apiserver", 1, false, "/var/log/pods/b/kube-apiserver"}}
	got := readParts(text)
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for i, dead := range []int{3, 0, 2} {
		if got[i].dead() != dead {
			t.Errorf("%v has ended %d times, want %d", got[i], got[i].dead(), dead)
		}
	}
}

func TestFatalWords(t *testing.T) {
	for text, want := range map[string]string{
		bogusFlag: `Error: unknown flag: --bogus-flag|E1124 01:00:00.000000       1 run.go:72] "command failed" err="unknown flag: --bogus-flag"`,
		panicked:  "panic: cannot go on",
		"2026-11-24T01:00:00.1Z stderr F flag provided but not defined: -bogus\n2026-11-24T01:00:00.1Z stderr F Usage:\n2026-11-24T01:00:00.1Z stderr F   etcd [flags]\n": "flag provided but not defined: -bogus",
		"one\ntwo\nthree\nfour\nfive\n": "two|three|four|five",
		"":                              "",
	} {
		if got := strings.Join(fatalWords(text), "|"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if !lacks([]string{`err="dial tcp 127.0.0.1:2379: connect: connection refused"`}) || lacks(fatalWords(bogusFlag)) {
		t.Error("what is waited for is not told from what cannot be")
	}
}

// TestCrashes: kubeadm is not waited for when a part of the control plane, or the kubelet, ends again and
// again, and what that said is quoted; one that waits for another part is waited for.
func TestCrashes(t *testing.T) {
	const logs = "/var/log/pods/kube-system_kube-apiserver-dev/kube-apiserver"
	for name, c := range map[string]struct {
		parts []string // the answers, one after the other
		log   string   // which is read
		text  string
		want  string // "" is that kubeadm is waited for
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
		"a log before a process":  {[]string{"kubelet 0\nkube-apiserver 1 no " + logs, "kubelet 0\nkube-apiserver 1 yes " + logs}, logs + "/0.log", bogusFlag, ""},
		"a node that says little": {[]string{""}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := clustertest.New(t)
			clusters, _ := clusters(f)
			clusters.watchPause = time.Millisecond
			f.Waits = func(ctx context.Context) error {
				for ctx.Err() == nil && f.Asked() < len(c.parts)+4 {
					time.Sleep(time.Millisecond)
				}
				return context.Cause(ctx)
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

// FuzzCrash: whatever a node says, its parts are whole and its words are few.
func FuzzCrash(f *testing.F) {
	f.Add("kubelet 3\nkube-apiserver 1 no /var/log/pods/b/kube-apiserver\n")
	f.Add(bogusFlag)
	f.Add(panicked)
	f.Fuzz(func(t *testing.T, text string) {
		for _, p := range readParts(text) {
			if p.name == "" || p.starts < 0 || p.dead() < 0 || strings.ContainsAny(p.logs, " \n") {
				t.Errorf("%q has the part %+v", text, p)
			}
		}
		words := fatalWords(text)
		if len(words) > 4 {
			t.Errorf("%q has %d words", text, len(words))
		}
		for _, w := range words {
			if w == "" || strings.Contains(w, "\n") {
				t.Errorf("%q says %q", text, w)
			}
		}
	})
}
