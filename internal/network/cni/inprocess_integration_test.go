//go:build integration

package cni_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestPluginsInProcess: a pod is attached, checked and detached without any plugin's program, and nothing is left.
func TestPluginsInProcess(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.BinDirs = []string{l.path("bin")}
	l.write("conf/10.conflist", `{"cniVersion":"1.1.0","name":"net","plugins":[
 {"type":"bridge","bridge":"br9","isDefaultGateway":true,"ipam":{"type":"host-local","dataDir":"`+l.path("ipam")+`",
  "ranges":[[{"subnet":"10.61.0.0/24"}],[{"subnet":"fd61::/64"}]]}},
 {"type":"loopback"}]}`, 0o644)
	n := l.open(cfg)
	defer n.Close()
	if err := n.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	networks, err := n.Networks(t.Context())
	if err != nil || len(networks) != 1 || len(networks[0].Plugins) != 3 {
		t.Fatalf("%+v, %v", networks, err)
	}
	for _, p := range networks[0].Plugins {
		if p.Fault != nil || !p.InProcess || !strings.Contains(p.Why, "is missing") || len(p.Versions) == 0 || p.Path != "" {
			t.Errorf("%+v does not run in process", p)
		}
	}
	att := l.pod()
	res, err := n.Attach(t.Context(), att)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.IPs) != 2 || res.IPs[0].String() != "10.61.0.2" || res.IPs[1].String() != "fd61::2" {
		t.Errorf("addresses %v", res.IPs)
	}
	err = sysns.InNetNS(att.NetNS, func() error {
		conn, err := net.DialTimeout("tcp", "10.61.0.1:9", 5*time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the gateway: %v, want an answer, that no program listens", err)
	}
	checks, err := n.Check(t.Context(), nil)
	if err != nil || len(checks) != 1 || checks[0].Fault != nil || checks[0].Skipped != "" {
		t.Errorf("%+v, %v", checks, err)
	}
	l.run(att.NetNS, "ip", "addr", "flush", "dev", "eth0")
	if checks, err = n.Check(t.Context(), nil); err != nil || len(checks) != 1 || checks[0].Fault == nil {
		t.Errorf("without addresses: %+v, %v", checks, err)
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(l.path("ipam", "net"))
	for _, f := range files {
		if f.Name() != "lock" && !strings.HasPrefix(f.Name(), "last_reserved_ip") {
			t.Errorf("%s is left in the store", f.Name())
		}
	}
	if err != nil {
		t.Error(err)
	}
	if links := l.run(l.host, "ip", "-o", "link"); strings.Contains(links, "veth") {
		t.Errorf("links are left: %s", links)
	}
}

// TestProgramOfTheSameName: an installed program that is not one of the reference's runs, and no plugin of berth's.
func TestProgramOfTheSameName(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.BinDirs = []string{l.path("bin")}
	l.plugin("bridge", `[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.9.9/24"}]}'
[ $CNI_COMMAND != VERSION ] || echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'`)
	l.write("conf/10.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}`, 0o644)
	n := l.open(cfg)
	defer n.Close()
	att := l.pod(network.Port{})
	res, err := n.Attach(t.Context(), att)
	if err != nil || len(res.IPs) != 1 || res.IPs[0].String() != "10.9.9.9" {
		t.Errorf("%+v, %v, want the program's address", res, err)
	}
	networks, err := n.Networks(t.Context())
	if err != nil || len(networks) != 1 || networks[0].Plugins[0].InProcess || !strings.Contains(networks[0].Plugins[0].Why, "unknown build") {
		t.Errorf("%+v, %v", networks, err)
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Error(err)
	}
	if got := l.verbs(); !strings.Contains(got, "ADD") || !strings.Contains(got, "DEL") {
		t.Errorf("the program was called with %s", got)
	}
}

// TestHungPluginInProcess: ADD by a plugin in process that waits ends with the caller's deadline, and names what waits. DEL
// waits for the plugin and undoes what it did; another pod does not wait.
func TestHungPluginInProcess(t *testing.T) {
	for _, pluginType := range []string{"ptp", "bridge"} {
		t.Run(pluginType, func(t *testing.T) { testHungPluginInProcess(t, pluginType) })
	}
}

func testHungPluginInProcess(t *testing.T, pluginType string) {
	l := newLab(t)
	cfg := l.config()
	cfg.BinDirs = []string{l.path("bin")}
	conf := func(dataDir string) string {
		return `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"` + pluginType + `","ipam":{"type":"host-local","dataDir":"` + dataDir + `","subnet":"10.61.0.0/24"}}]}`
	}
	l.write("conf/10.conflist", conf(l.path("hung")), 0o644)
	if err := os.MkdirAll(l.path("hung", "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(l.path("hung", "net", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	n := l.open(cfg)
	defer n.Close()
	att := l.pod()
	ctx, cancel := context.WithTimeout(t.Context(), require.Patience(time.Second))
	defer cancel()
	if _, err := n.Attach(ctx, att); !errors.Is(err, errs.Deadline) || !strings.Contains(err.Error(), `stage "host-local: `) {
		t.Errorf("an ADD that hangs: %v, want kind Deadline, and the stage of host-local", err)
	}
	l.write("conf/10.conflist", conf(l.path("free")), 0o644)
	other := l.pod()
	if _, err := n.Attach(t.Context(), other); err != nil {
		t.Errorf("another pod: %v", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	for _, a := range []*network.Attachment{att, other} {
		if err := n.Detach(t.Context(), a); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range []string{"hung", "free"} {
		l.wantNoAddress(dir)
	}
}

// wantNoAddress: the store of host-local in a directory has no address of the network "net".
func (l *lab) wantNoAddress(dir string) {
	l.t.Helper()
	files, err := filepath.Glob(l.path(dir, "net", "10.*"))
	if err != nil || len(files) > 0 {
		l.t.Errorf("%s are left, %v", files, err)
	}
}

// TestLinkThatCannotBeMade: a bridge without a link for the pod releases the pod's address before ADD ends.
func TestLinkThatCannotBeMade(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.BinDirs = []string{l.path("bin")}
	l.write("conf/10.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","args":{"cni":{"mac":"wrong"}},
		"ipam":{"type":"host-local","dataDir":"`+l.path("store")+`","subnet":"10.61.0.0/24"}}]}`, 0o644)
	n := l.open(cfg)
	defer n.Close()
	att := l.pod()
	if _, err := n.Attach(t.Context(), att); err == nil || !strings.Contains(err.Error(), "wrong") {
		t.Errorf("%v, want the MAC in the error", err)
	}
	l.wantNoAddress("store")
	if last, err := filepath.Glob(l.path("store", "net", "last_reserved_ip.*")); err != nil || len(last) == 0 {
		t.Errorf("%s, %v: no address was allocated", last, err)
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Error(err)
	}
}

// TestReadyMeansThatPodsCanStart: the network is not ready while a plugin, or the IPAM plugin that it runs, has no
// program and cannot serve its configuration in process.
func TestReadyMeansThatPodsCanStart(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.BinDirs = []string{l.path("bin")}
	l.plugin("ptp", "")
	for _, c := range []struct{ name, plugin, want string }{
		{"the IPAM plugin of a program", `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.61.0.0/24"}}`, "does not find its IPAM plugin"},
		{"an option", `{"type":"bridge","shape":"round","ipam":{"type":"host-local","subnet":"10.61.0.0/24"}}`, `the option "shape"`},
		{"an option of IPAM", `{"type":"bridge","ipam":{"type":"host-local","colour":1,"subnet":"10.61.0.0/24"}}`, `the option "ipam.colour"`},
		{"another IPAM plugin", `{"type":"bridge","ipam":{"type":"whereabouts"}}`, "whereabouts"},
		{"nothing", `{"type":"bridge","ipam":{"type":"host-local","subnet":"10.61.0.0/24"}}`, ""},
	} {
		l.write("conf/10.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[`+c.plugin+`]}`, 0o644)
		n := l.open(cfg)
		err := n.Ready(t.Context())
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		n.Close()
	}
}
