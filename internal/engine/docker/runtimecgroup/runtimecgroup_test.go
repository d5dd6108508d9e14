package runtimecgroup

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

func TestRefusedOptions(t *testing.T) {
	for name, c := range map[string]struct{ endpoint, cgroup, want string }{
		"TCP":      {"tcp://192.0.2.1:2375", "/docker-runtime", "the engine's endpoint is tcp://192.0.2.1:2375"},
		"root":     {"unix:///run/docker.sock", "/", "want an absolute path other than /"},
		"relative": {"unix:///run/docker.sock", "docker", "want an absolute path"},
		"parent":   {"unix:///run/docker.sock", "/a/../b", "want an absolute path"},
	} {
		_, err := Start(Options{Endpoint: c.endpoint, Cgroup: c.cgroup, Tree: &cgroup.Tree{}})
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want Invalid with %q", name, err, c.want)
		}
	}
}

// TestEngineOfASocket: the process that called listen is the engine only while it has the socket: its
// pid may be another process's.
func TestEngineOfASocket(t *testing.T) {
	const peer = 10
	proc := func(pid, parent int) sysproc.Proc { return sysproc.Proc{Pid: pid, PPid: parent} }
	all := []sysproc.Proc{proc(1, 0), proc(peer, 1), proc(20, 1), proc(21, 20), proc(22, 21), proc(30, 1)}
	for name, c := range map[string]struct {
		holders []int
		want    int
		kind    error
	}{
		"the peer":                        {[]int{1, peer, 30}, peer, nil},
		"another process has the pid":     {[]int{20}, 20, nil},
		"a socket unit":                   {[]int{1, 20}, 20, nil},
		"children have inherited it":      {[]int{1, 20, 21, 22}, 20, nil},
		"a socket unit without an engine": {[]int{1}, 0, errs.Unavailable},
		"several":                         {[]int{20, 30}, 0, errs.State},
	} {
		got, err := engineOf("/run/docker.sock", peer, all, func(pid int) bool { return slices.Contains(c.holders, pid) })
		if got.Pid != c.want || !errors.Is(err, c.kind) {
			t.Errorf("%s: process %d, %v; want %d, %v", name, got.Pid, err, c.want, c.kind)
		}
	}
}

// TestSameProcess: a process is the same while its start is and it is what it was found as.
func TestSameProcess(t *testing.T) {
	own, err := sysproc.ReadProc(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	yes, no := func() bool { return true }, func() bool { return false }
	earlier := own
	earlier.Start--
	for name, c := range map[string]struct {
		process process
		want    bool
	}{
		"itself":                    {process{own, yes}, true},
		"without the socket":        {process{own, no}, false},
		"another with the same pid": {process{earlier, yes}, false},
		"none":                      {process{sysproc.Proc{Pid: -1}, yes}, false},
	} {
		if got := c.process.same(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestProcessOfAUnit: on cgroup v2 a process of a systemd service stays where it is.
func TestProcessOfAUnit(t *testing.T) {
	for group, want := range map[string]string{
		"/":                                   "",
		"/docker":                             "",
		"/user.slice/a.scope":                 "",
		"/system.slice/docker.service":        "docker.service",
		"/system.slice/docker.service/engine": "docker.service",
		"/my.service.d/x":                     "",
	} {
		err := checkUnit(7, group)
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", group, err)
			}
			continue
		}
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "Slice= and OOMScoreAdjust= in a drop-in of "+want) {
			t.Errorf("%s: %v, want Invalid with Slice= of %s", group, err, want)
		}
	}
}

// TestFaultsAreReported: a score that the host refuses is not said to be a fault of the cgroup, and names
// the capability. A fault is logged once, until a look has none.
func TestFaultsAreReported(t *testing.T) {
	var lines bytes.Buffer
	k := &Keeper{opts: Options{Cgroup: "/docker-runtime", Log: slog.New(slog.NewTextHandler(&lines, nil))}}
	refused := fmt.Errorf("oom_score_adj -999 of process 7: %w", errs.Unsupported)
	full := errors.New("no space")
	logged := func(moved, scored error, want ...string) {
		t.Helper()
		lines.Reset()
		k.report(moved, scored)
		for _, text := range want {
			if !strings.Contains(lines.String(), text) {
				t.Errorf("%v, %v: logged %q, want %q", moved, scored, &lines, text)
			}
		}
		if len(want) == 0 && lines.Len() > 0 {
			t.Errorf("%v, %v: logged %q", moved, scored, &lines)
		}
	}
	logged(nil, nil)
	logged(nil, refused, "oom_score_adj of the engine's processes cannot be lowered", "CAP_SYS_RESOURCE", "oom_score_adj -999 of process 7")
	if strings.Contains(lines.String(), "cgroup") {
		t.Errorf("a fault of a score alone is said to be one of the cgroup: %s", &lines)
	}
	logged(nil, refused)
	logged(nil, nil)
	logged(full, refused, "cannot be kept in their cgroup", "no space", "CAP_SYS_RESOURCE")
	logged(full, nil)
	logged(nil, nil)
	logged(nil, full, "cannot be set", "no space")
}
