//go:build integration

package builtin_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/builtin"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// lab is a network namespace that stands for the host, with directories for a network and
// namespaces for pods.
type lab struct {
	t    testing.TB
	dir  string
	host string
	log  *slog.Logger
	next atomic.Int64
}

func newLab(t testing.TB) *lab {
	t.Helper()
	require.Root(t)
	require.Binary(t, "ip")
	require.Binary(t, "nft")
	l := &lab{t: t, dir: t.TempDir(), log: slog.New(slog.NewTextHandler(testWriter{t}, nil))}
	l.host = l.netns("host")
	return l
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Helper()
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// netns creates a namespace and removes it with the test.
func (l *lab) netns(name string) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	if err := sysns.NewNetNS(path); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := sysns.RemoveNetNS(path); err != nil {
			l.t.Error(err)
		}
	})
	return path
}

// config is the network's default configuration in this lab.
func (l *lab) config() builtin.Config {
	return builtin.Config{
		StateDir: filepath.Join(l.dir, "state"), RootDir: filepath.Join(l.dir, "root"),
		HostNetNS: l.host, Log: l.log,
	}
}

// open opens a network and closes it with the test.
func (l *lab) open(cfg builtin.Config) *builtin.Network {
	l.t.Helper()
	n, err := builtin.New(context.Background(), cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// pod creates a namespace for a pod and the request to attach it.
func (l *lab) pod(ports ...network.Port) *network.Attachment {
	l.t.Helper()
	id := fmt.Sprintf("%011x%053x", l.next.Add(1), 0)
	return &network.Attachment{
		SandboxID: id, NetNS: l.netns("pod-" + id[:11]),
		Name: "pod-" + strings.TrimLeft(id[:11], "0"), Namespace: "default", UID: "uid", Ports: ports,
	}
}

func (l *lab) attach(n *builtin.Network, att *network.Attachment) *network.Result {
	l.t.Helper()
	res, err := n.Attach(context.Background(), att)
	if err != nil {
		l.t.Fatal(err)
	}
	return res
}

// run runs a program in a namespace and returns its output.
func (l *lab) run(netns, program string, args ...string) string {
	l.t.Helper()
	out, err := l.tryRun(netns, program, args...)
	if err != nil {
		l.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return out
}

func (l *lab) tryRun(netns, program string, args ...string) (string, error) {
	l.t.Helper()
	var out []byte
	err := sysns.InNetNS(netns, func() error {
		var err error
		out, err = exec.Command(program, args...).CombinedOutput()
		return err
	})
	return string(out), err
}

// eventually waits until condition holds. state is what the test reports if it never does.
func (l *lab) eventually(what string, condition func() bool, state func() string) {
	l.t.Helper()
	for deadline := time.Now().Add(require.Patience(10 * time.Second)); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("not in time: %s\n%s", what, state())
		}
	}
}

func (l *lab) sysctl(netns, key, value string) {
	l.t.Helper()
	err := sysns.InNetNS(netns, func() error { return os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0) })
	if err != nil {
		l.t.Fatal(err)
	}
}
