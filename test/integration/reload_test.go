//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/test/harness"
)

func TestReload(t *testing.T) {
	b := harness.New(t, harness.Options{Config: "[log]\nlevel = 'info'\n"})
	file := filepath.Join(b.Dir, "berth.toml")
	// The harness sets a level by flag, which overrides the file.
	n := &freshHost{b, t}
	c := n.start(n.berth(), n.places("--config", file)...)
	n.Await("the daemon", func() bool {
		_, err := b.Runtime.Version(b.Ctx(), &runtimeapi.VersionRequest{})
		return err == nil
	})
	reload := func(text string, words ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		before := len(c.out.String())
		if err := c.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		for _, word := range words {
			n.Await("the log to say "+word, func() bool { return strings.Contains(c.out.String()[before:], word) })
		}
	}
	// berth info and the metrics show the last reload.
	shows := func(info, metrics string) {
		t.Helper()
		n.Await("info "+info+", metrics "+metrics, func() bool {
			_, inMetrics, _ := strings.Cut(b.MustCLI("metrics"), metrics)
			return regexp.MustCompile(info).MatchString(b.MustCLI("info")) && inMetrics != ""
		})
	}
	shows(`(?s)^Endpoint:.*Runtime:`, "\nberth_config_last_reload_successful 1\n")
	reload("[log]\nlevel = 'loud'\n[nets]\n", "cannot reload the configuration", file+":2: log.level", "debug, info, warn, error", file+":3: nets")
	shows(`(?m)^Last reload: +refused at \S+: \Q`+file+`\E:2: log.level: .*; \Q`+file+`\E:3: nets: `, "\nberth_config_last_reload_successful 0\n")
	if out := b.MustCLI("info", "-o", "json"); !strings.Contains(out, `"refused": true`) {
		t.Errorf("the verbose status does not have the refused reload: %s", out)
	}
	reload("[runtime]\nseccomp_profile = '/no/such/profile'\n", "cannot reload the configuration", file+":2: runtime.seccomp_profile")
	if out, errOut, err := b.CLI("config", "check", file); err == nil || !strings.Contains(errOut, file+":2: runtime.seccomp_profile") {
		t.Errorf("config check and a reload do not agree: %v %s%s", err, out, errOut)
	}
	if out := b.MustCLI("config", "dump", "--running"); !strings.Contains(out, "\nseccomp_profile = ''\n") || !strings.Contains(out, "\nroot = '"+b.Root+"'\n") {
		t.Errorf("the running configuration is %s", out)
	}
	reload("root == 1", "cannot reload the configuration", file+":1:")
	reload("[log]\nlevel = 'debug'\n[jobs]\nstage_timeout = '1m'\n[network]\nmtu = 1400\n",
		"reloaded", "log.level", "jobs.stage_timeout", "need a restart", "network.mtu")
	shows(`(?m)^Keys that need a restart: +network\.mtu$`, "\nberth_config_keys_need_restart 1\n")
	shows(`(?m)^Keys that need a restart: `, "\nberth_config_last_reload_successful 1\n")
	if out := b.MustCLI("info"); strings.Contains(out, "Last reload") {
		t.Errorf("a good reload does not clear the refused one:\n%s", out)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	n.Await("the log to miss the file", func() bool { return strings.Contains(c.out.String(), "not found") })
	shows(`(?m)^Last reload: +refused at .*not found`, "\nberth_config_keys_need_restart 1\n") // still, since the last good file
	if err := os.WriteFile(file, []byte("[log]\nlevel = 'info'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	shows(`(?s)^Endpoint:`, "\nberth_config_keys_need_restart 0\n")
	if _, err := b.Runtime.Version(b.Ctx(), &runtimeapi.VersionRequest{}); err != nil {
		t.Errorf("it answers no more: %v", err)
	}
	_ = c.Process.Signal(syscall.SIGTERM)
	if r := n.end(c); r.code != 0 {
		t.Errorf("exit code %d:\n%s", r.code, r.out)
	}
	n.nothing(t)
}

// TestHangupAtTheStart: a SIGHUP before the daemon serves does not end it. The daemon reads the configuration again once
// it serves. Nor does one end it while it stops.
func TestHangupAtTheStart(t *testing.T) {
	b := harness.New(t, harness.Options{})
	file := filepath.Join(b.Dir, "berth.toml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := &freshHost{b, t}
	c := n.start(n.berth(), n.places("--config", file)...)
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := c.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	says := func(word string) {
		n.Await("the log to say "+word, func() bool { return strings.Contains(c.out.String(), word) })
	}
	says("berth starts")
	signal(syscall.SIGHUP)
	says("configuration reloaded")
	signal(syscall.SIGTERM)
	says("berth stops")
	signal(syscall.SIGHUP)
	if r := n.end(c); r.code != 0 {
		t.Errorf("exit code %d:\n%s", r.code, r.out)
	}
	n.nothing(t)
}
