//go:build integration

package cni_test

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

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/cni"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// lab is a network namespace that stands for the host, with directories for configurations, plugins
// and their state.
type lab struct {
	t    testing.TB
	dir  string
	host string
	next atomic.Int64
	// number is the lab's own in this process.
	number int64
}

// labs counts the labs of this process.
var labs atomic.Int64

func newLab(t testing.TB) *lab {
	t.Helper()
	require.Root(t)
	l := &lab{t: t, dir: t.TempDir(), number: labs.Add(1)}
	l.host = l.netns("host")
	for _, dir := range []string{"conf", "bin"} {
		if err := os.Mkdir(filepath.Join(l.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (l *lab) path(name ...string) string { return filepath.Join(append([]string{l.dir}, name...)...) }

func (l *lab) netns(name string) string {
	l.t.Helper()
	path := l.path(name)
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

func (l *lab) config() cni.Config {
	return cni.Config{
		ConfDir: l.path("conf"), BinDirs: []string{l.path("bin"), "/usr/lib/cni"}, RootDir: l.path("root"), StateDir: l.path("state"), MaxNetworks: 1,
		HostNetNS: l.host, Log: slog.New(slog.NewTextHandler(testWriter{l.t}, nil)),
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func (l *lab) open(cfg cni.Config) *cni.Network {
	l.t.Helper()
	n, err := cni.New(context.Background(), cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

func (l *lab) write(path, content string, mode os.FileMode) {
	l.t.Helper()
	if err := os.WriteFile(l.path(path), []byte(content), mode); err != nil {
		l.t.Fatal(err)
	}
}

// plugin installs a fake plugin: a shell script that first appends its call to the file "calls"
// (verb, sandbox, namespace) and its input to "input.VERB".
func (l *lab) plugin(name, script string) {
	l.t.Helper()
	l.write("bin/"+name, fmt.Sprintf(`#!/bin/sh
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_ARGS" >>%[1]s/calls
cat >%[1]s/input.$CNI_COMMAND
%[2]s
`, l.dir, script), 0o755)
}

// verbs is the order in which the fake was called.
func (l *lab) verbs() string {
	l.t.Helper()
	data, err := os.ReadFile(l.path("calls"))
	if err != nil && !os.IsNotExist(err) {
		l.t.Fatal(err)
	}
	var verbs []string
	for line := range strings.Lines(string(data)) {
		verb, _, _ := strings.Cut(line, " ")
		verbs = append(verbs, verb)
	}
	return strings.Join(verbs, " ")
}

func (l *lab) pod(ports ...network.Port) *network.Attachment {
	l.t.Helper()
	// Unique among processes and labs: a network that starts kills the plugins that an earlier process
	// has left for its sandboxes, and finds them by the ids.
	id := fmt.Sprintf("%011x%032x%021x", l.next.Add(1), os.Getpid(), l.number)
	return &network.Attachment{
		SandboxID: id, NetNS: l.netns("pod-" + id[:11]),
		Name: "pod", Namespace: "default", UID: "uid-1", Ports: ports,
	}
}

func (l *lab) run(netns, program string, args ...string) string {
	l.t.Helper()
	var out []byte
	err := sysns.InNetNS(netns, func() error {
		var err error
		out, err = exec.Command(program, args...).CombinedOutput()
		return err
	})
	if err != nil {
		l.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}
