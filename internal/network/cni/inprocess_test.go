package cni

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/require"
)

// TestWay: which plugins run in process, and why.
func TestWay(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "bridge")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	const known, unknown = `{"bridge":"br0"}`, `{"bridge":"br0","shape":"round"}`
	for _, c := range []struct {
		name         string
		off          bool
		path, config string
		inProcess    bool
		why          string
		fault        bool
	}{
		{name: "no program", path: "/nonesuch/bridge", config: known, inProcess: true, why: "the program /nonesuch/bridge is missing"},
		{name: "another program", path: program, config: known, why: "of an unknown build"},
		{name: "turned off", off: true, path: "/nonesuch/bridge", config: known, why: "network.inprocess is false"},
		{name: "not one of ours", path: "/nonesuch/calico", config: known, why: "berth has no such plugin"},
		{name: "unknown option", path: "/nonesuch/bridge", config: unknown, fault: true, why: `does not know the option "shape"`},
		{name: "unknown option of IPAM", path: "/nonesuch/host-local", config: `{"shape":1,"ipam":{"colour":1}}`, fault: true, why: `"ipam.colour"`},
		{name: "options of the plugin that delegates", path: "/nonesuch/host-local", config: `{"shape":1,"ipam":{"type":"host-local"}}`, inProcess: true, why: "is missing"},
		{name: "another backend", path: "/nonesuch/firewall", config: `{"backend":"firewalld"}`, fault: true, why: `no backend "firewalld"`},
	} {
		e := newExecutor(&Config{ProgramsOnly: c.off})
		how, err := e.wayOf(c.path, "ADD", []byte(c.config))
		why := how.why
		if err != nil {
			why = err.Error()
		}
		if (how.plugin != nil) != c.inProcess || (err != nil) != c.fault || !strings.Contains(why, c.why) || c.fault && !errors.Is(err, errs.Unsupported) {
			t.Errorf("%s: in process %t, %q, %v; want %t, %q", c.name, how.plugin != nil, how.why, err, c.inProcess, c.why)
		}
	}
	if !isCovered("github.com/containernetworking/plugins@v1.9.1") || isCovered("github.com/containernetworking/plugins@v1.8.0") || isCovered("example.com/plugins@v1.9.1") {
		t.Error("other releases are covered than those that the differential suite compares")
	}
}

// TestFindInPath: a plugin that runs in process needs no program, and no other is found without one.
func TestFindInPath(t *testing.T) {
	e := newExecutor(&Config{})
	if path, err := e.FindInPath("bridge", []string{"/nonesuch", "/none"}); err != nil || path != "/nonesuch/bridge" {
		t.Errorf("%s, %v", path, err)
	}
	for _, name := range []string{"calico", "../bridge", ""} {
		if path, err := e.FindInPath(name, []string{"/nonesuch"}); err == nil {
			t.Errorf("%q is found at %s", name, path)
		}
	}
	if path, err := newExecutor(&Config{ProgramsOnly: true}).FindInPath("bridge", []string{"/nonesuch"}); err == nil {
		t.Errorf("turned off, it is found at %s", path)
	}
}

// TestCallsOfOneAttachment: a call that its caller has given up goes on, so the next one for the same pod waits for it,
// up to its own deadline, and no call for another pod does.
func TestCallsOfOneAttachment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var own inProcess
		end, err := own.begin(t.Context(), "bridge a eth0")
		if err != nil {
			t.Fatal(err)
		}
		late, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := own.begin(late, "bridge a eth0"); !errors.Is(err, context.Canceled) {
			t.Errorf("a call past its deadline: %v", err)
		}
		for _, key := range []string{"bridge b eth0", "", ""} {
			if _, err := own.begin(late, key); err != nil {
				t.Errorf("a call of %q: %v", key, err)
			}
		}
		began := make(chan struct{})
		go func() {
			if _, err := own.begin(t.Context(), "bridge a eth0"); err != nil {
				t.Error(err)
			}
			close(began)
		}()
		synctest.Wait()
		select {
		case <-began:
			t.Error("two calls for one pod run at once")
		default:
		}
		end()
		<-began
	})
}

// TestDeadlineInProcess: a call whose plugin does not end returns at its deadline and names the stage.
func TestDeadlineInProcess(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	hung := &plugin.Plugin{Type: "hung", Versions: version.All, Del: func(_ context.Context, c *plugin.Call) error {
		c.Stage("wait for a lock")
		cancel()
		<-release
		return nil
	}}
	e := newExecutor(&Config{})
	env := []string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=a", "CNI_IFNAME=eth0", "CNI_PATH=/nonesuch"}
	config := []byte(`{"cniVersion":"1.0.0","name":"net"}`)
	_, err := e.runInProcess(ctx, hung, config, env)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), `stage "wait for a lock"`) {
		t.Errorf("%v, want the stage", err)
	}
	close(release)
	if _, err := e.runInProcess(t.Context(), hung, config, env); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// TestTooManyAbandonedCalls: while many calls past their deadline still run, no pod is attached; DEL still runs. When
// they have ended, pods are attached again.
func TestTooManyAbandonedCalls(t *testing.T) {
	release := make(chan struct{})
	hung := &plugin.Plugin{Type: "hung", Versions: version.All, Del: func(context.Context, *plugin.Call) error {
		<-release
		return nil
	}}
	config := []byte(`{"cniVersion":"1.0.0","name":"net"}`)
	env := func(verb, container string) []string {
		return []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + container, "CNI_IFNAME=eth0", "CNI_PATH=/nonesuch"}
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	e := newExecutor(&Config{})
	for i := range maxAbandoned {
		if err := e.own.mayAdd(); err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
		if _, err := e.runInProcess(late, hung, config, env("DEL", "pod"+strconv.Itoa(i))); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	_, err := e.runInProcess(t.Context(), hung, config, env("ADD", "other"))
	if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), strconv.Itoa(maxAbandoned)+" calls of CNI plugins") {
		t.Errorf("%v, want kind Unavailable with the number of calls", err)
	}
	close(release)
	for i := range maxAbandoned {
		if _, err := e.runInProcess(t.Context(), hung, config, env("DEL", "pod"+strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.own.mayAdd(); err != nil {
		t.Errorf("after their end: %v", err)
	}
}

// TestFirewalldIsAskedForOnce: one question to the system bus for an ADD, and none for a DEL without a program, which
// must stay possible when firewalld starts later.
func TestFirewalldIsAskedForOnce(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var asked atomic.Int32
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			conn.Close()
		}
	}()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+socket)
	t.Setenv("PATH", t.TempDir()) // no iptables: only the way to the verbs is of interest
	for _, c := range []struct {
		verb string
		want int32
	}{{"ADD", 1}, {"DEL", 0}, {"VERSION", 0}} {
		asked.Store(0)
		env := []string{"CNI_COMMAND=" + c.verb, "CNI_CONTAINERID=a", "CNI_IFNAME=eth0", "CNI_PATH=/nonesuch", "CNI_NETNS=/nonesuch"}
		_, _ = newExecutor(&Config{}).ExecPlugin(t.Context(), "/nonesuch/firewall", []byte(`{"cniVersion":"1.0.0","name":"net","type":"firewall"}`), env)
		if got := asked.Load(); got != c.want {
			t.Errorf("%s asks the bus %d times, want %d", c.verb, got, c.want)
		}
	}
}

// TestProgramIsReadOutsideTheLock: a call begins while the file of a program is read, which may be slow.
func TestProgramIsReadOutsideTheLock(t *testing.T) {
	slow := filepath.Join(t.TempDir(), "bridge")
	if err := unix.Mkfifo(slow, 0o700); err != nil { // to open it waits for a writer
		t.Fatal(err)
	}
	info, err := os.Stat(slow)
	if err != nil {
		t.Fatal(err)
	}
	var own inProcess
	read := make(chan struct{})
	go func() {
		own.buildOf(slow, info)
		close(read)
	}()
	stacks := make([]byte, 1<<20)
	for !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "buildinfo.ReadFile") {
		time.Sleep(time.Millisecond)
	}
	began := make(chan struct{})
	go func() {
		if end, err := own.begin(t.Context(), "bridge a eth0"); err != nil {
			t.Error(err)
		} else {
			end()
		}
		close(began)
	}()
	select {
	case <-began:
	case <-time.After(require.Patience(10 * time.Second)):
		t.Error("a call waits for the program's file")
	}
	writer, err := os.OpenFile(slow, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	writer.Close()
	<-read
	<-began
}
