package cni

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/cni/plugin"
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
		{name: "no program", path: "/nonesuch/bridge", config: known, inProcess: true, why: "there is no program /nonesuch/bridge"},
		{name: "another program", path: program, config: known, why: "of an unknown build"},
		{name: "turned off", off: true, path: "/nonesuch/bridge", config: known, why: "network.inprocess is false"},
		{name: "not one of ours", path: "/nonesuch/calico", config: known, why: "berth has no such plugin"},
		{name: "unknown option", path: "/nonesuch/bridge", config: unknown, fault: true, why: `does not know the option "shape"`},
		{name: "unknown option of IPAM", path: "/nonesuch/host-local", config: `{"shape":1,"ipam":{"colour":1}}`, fault: true, why: `"ipam.colour"`},
		{name: "options of the plugin that delegates", path: "/nonesuch/host-local", config: `{"shape":1,"ipam":{"type":"host-local"}}`, inProcess: true, why: "there is no program"},
		{name: "another backend", path: "/nonesuch/firewall", config: `{"backend":"firewalld"}`, fault: true, why: `no backend "firewalld"`},
	} {
		e := newExecutor(&Config{ProgramsOnly: c.off})
		how, err := e.wayOf(c.path, []byte(c.config))
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
