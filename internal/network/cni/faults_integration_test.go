//go:build integration

package cni_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/cni"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// plantedFault is one case of the fault matrix: a plugin of the chain has a fault once, at a verb, and
// something follows.
type plantedFault struct {
	plugin, verb, fault, then string
	// inProcess has all plugins but the one with the fault run in process.
	inProcess bool
}

func (f plantedFault) String() string {
	if f.inProcess {
		return "in process/" + strings.Join([]string{f.plugin, f.verb, f.fault, f.then}, "/")
	}
	return strings.Join([]string{f.plugin, f.verb, f.fault, f.then}, "/")
}

// chainOfPlugins is the chain; host-local is the first one's IPAM.
var chainOfPlugins = []string{"bridge", "host-local", "portmap", "bandwidth", "tuning", "firewall"}

// The faults, as a shell script. "before" and "after" are before and after the plugin's work, of which
// the caller does not see the result. The daemon is killed while the plugin hangs.
var (
	faultNames = []string{"error before", "error after", "hang before", "hang after", "killed before", "killed after", "garbage after", "daemon killed before", "daemon killed after"}
	faultEnds  = map[string]string{
		"error": `echo '{"cniVersion": "1.0.0", "code": 999, "msg": "planted"}'; exit 1`, "garbage": "echo no JSON; exit 0",
		"hang": "touch $lab/hung; exec sleep 1000", "killed": "kill -9 $$", "daemon killed": "touch $lab/hung; exec sleep 1000",
	}
	thenNames = []string{"same sandbox again", "new sandbox first", "stop", "restart", "restart, sandbox gone", "reboot"}
)

// faultChain is the configuration of the lab, with the store of host-local in it.
const faultChain = `{"cniVersion": "1.0.0", "name": "faults", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
  "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.88.0.0/29"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}},
 {"type": "bandwidth", "ingressRate": 100000000, "ingressBurst": 10000000},
 {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}},
 {"type": "firewall", "backend": "iptables"}]}`

// plant writes the chain, and the plugin with its fault. The others are the installed ones, or run in process.
func (l *lab) plant(f plantedFault) {
	l.t.Helper()
	l.write("conf/10-faults.conflist", fmt.Sprintf(faultChain, l.path("store")), 0o644)
	if f.inProcess && f.plugin == "bridge" { // a program finds its IPAM plugin only as a program
		if err := os.Symlink(real("host-local"), l.path("bin/host-local")); err != nil {
			l.t.Fatal(err)
		}
	}
	what := f.fault[:strings.LastIndex(f.fault, " ")]
	work := ":"
	if strings.HasSuffix(f.fault, "after") {
		work = real(f.plugin) + " >$lab/result"
	}
	l.write("bin/"+f.plugin, fmt.Sprintf("#!/bin/sh\nlab=%s\nif [ $CNI_COMMAND = %s ] && mkdir $lab/once 2>/dev/null; then\n%s\n%s\nfi\nexec %s\n",
		l.dir, f.verb, work, faultEnds[what], real(f.plugin)), 0o755)
}

func real(plugin string) string { return "/usr/lib/cni/" + plugin }

// inProcessMark is a file of a lab whose plugins without a fault run in process, for the process that killDaemonIn starts.
const inProcessMark = "in-process"

// faultTimeout is how long a verb may take. A plugin that hangs costs it.
func faultTimeout() time.Duration { return require.Patience(4 * time.Second) }

func (l *lab) faultConfig() cni.Config {
	cfg := l.config()
	cfg.DelTimeout = faultTimeout()
	cfg.ProgramsOnly = true
	if _, err := os.Stat(l.path(inProcessMark)); err == nil {
		cfg.ProgramsOnly, cfg.BinDirs = false, []string{l.path("bin"), l.path("no-programs")}
	}
	return cfg
}

// testFault plants a fault, has a pod meet it, and does what follows. Then a pod starts, and at the
// end nothing is left.
func testFault(t *testing.T, f plantedFault) {
	l := newLab(t)
	if f.inProcess {
		l.write(inProcessMark, "", 0o644)
	}
	l.plant(f)
	n := l.open(l.faultConfig())
	pod := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	if f.verb == "DEL" {
		l.mustAttach(n, pod)
	}
	if strings.HasPrefix(f.fault, "daemon killed") {
		n.Close()
		l.killDaemonIn(pod, f.verb)
		n = l.open(l.faultConfig())
	} else {
		ctx, cancel := context.WithTimeout(t.Context(), faultTimeout())
		if f.verb == "ADD" {
			if _, err := n.Attach(ctx, pod); err == nil {
				t.Error("ADD succeeded with the fault")
			} else if !strings.Contains(err.Error(), pod.SandboxID) || !strings.Contains(err.Error(), "ADD") {
				t.Errorf("the error names no sandbox or verb: %v", err)
			}
		} else if err := n.Detach(ctx, pod); err == nil && !strings.HasPrefix(f.fault, "garbage") {
			t.Error("DEL succeeded with the fault") // nobody reads what a DEL prints
		}
		cancel()
	}
	if _, err := os.Stat(l.path("once")); err != nil {
		t.Fatalf("the fault was not met: %v", err)
	}
	n = l.follow(n, f, pod)
	if err := n.GC(t.Context(), nil); err != nil {
		t.Error(err)
	}
	l.wantNoAttachment(n)
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	l.wantNothingLeft(f, pod.SandboxID)
}

// follow does what follows a fault. Each way ends with a pod that starts without an operator, and is
// stopped.
func (l *lab) follow(n *cni.Network, f plantedFault, pod *network.Attachment) *cni.Network {
	l.t.Helper()
	ctx := l.t.Context()
	next := func() {
		l.t.Helper()
		other := l.pod(pod.Ports...)
		l.mustAttach(n, other)
		l.mustDetach(n, other)
	}
	switch f.then {
	case "same sandbox again":
		if f.verb == "ADD" {
			l.mustAttach(n, pod)
		}
		l.mustDetach(n, pod)
	case "new sandbox first": // its host port is free once the former one is undone
		other := l.pod()
		l.mustAttach(n, other)
		l.mustDetach(n, pod)
		l.mustDetach(n, other)
	case "stop":
		l.mustDetach(n, pod)
		l.mustDetach(n, pod)
		next()
	case "restart", "restart, sandbox gone":
		n.Close()
		n = l.open(l.faultConfig())
		var live []string
		if f.then == "restart" {
			live = []string{pod.SandboxID}
		}
		if err := n.GC(ctx, live); err != nil {
			l.t.Error(err)
		}
		l.mustDetach(n, pod)
		next()
	case "reboot": // what the kernel and its tmpfs had is gone, and what is on the disk stays
		n.Close()
		if err := os.RemoveAll(l.path("state")); err != nil {
			l.t.Fatal(err)
		}
		for _, path := range []string{pod.NetNS, l.host} {
			if err := errors.Join(sysns.RemoveNetNS(path), sysns.NewNetNS(path)); err != nil {
				l.t.Fatal(err)
			}
		}
		n = l.open(l.faultConfig())
		if err := n.GC(ctx, nil); err != nil {
			l.t.Error(err)
		}
		next()
	default:
		l.t.Fatalf("what is %q?", f.then)
	}
	return n
}

// mustAttach attaches a pod, as a kubelet does: it repeats what fails.
func (l *lab) mustAttach(n *cni.Network, pod *network.Attachment) {
	l.t.Helper()
	l.repeat("attach", func(ctx context.Context) error { _, err := n.Attach(ctx, pod); return err })
}

func (l *lab) mustDetach(n *cni.Network, pod *network.Attachment) {
	l.t.Helper()
	l.repeat("detach", func(ctx context.Context) error { return n.Detach(ctx, pod) })
}

func (l *lab) repeat(what string, try func(context.Context) error) {
	l.t.Helper()
	var err error
	for range 5 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*faultTimeout())
		err = try(ctx)
		cancel()
		if err == nil {
			return
		}
		l.t.Logf("%s, once more after: %v", what, err)
	}
	l.t.Errorf("cannot %s: %v", what, err)
}

// faultLab is the variable of the process that is killed, with the directory of its lab.
const faultLab = "BERTH_TEST_FAULT_LAB"

// killDaemonIn starts a process that attaches or detaches the pod, and kills it in the fault.
func (l *lab) killDaemonIn(pod *network.Attachment, verb string) {
	l.t.Helper()
	victim := exec.Command(os.Args[0], "-test.run=^TestFaultVictim$")
	victim.Env = append(os.Environ(), faultLab+"="+l.dir, "BERTH_TEST_POD="+pod.SandboxID, "BERTH_TEST_VERB="+verb)
	if err := victim.Start(); err != nil {
		l.t.Fatal(err)
	}
	for deadline := time.Now().Add(require.Patience(20 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(l.path("hung")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			l.t.Error("the process does not come to the fault")
			break
		}
	}
	_ = victim.Process.Signal(syscall.SIGKILL) // it has not ended: the plugin hangs
	_ = victim.Wait()
}

// TestFaultVictim is the process that killDaemonIn kills.
func TestFaultVictim(t *testing.T) {
	dir := os.Getenv(faultLab)
	if dir == "" {
		return // not called by killDaemonIn
	}
	l := &lab{t: t, dir: dir, host: filepath.Join(dir, "host")}
	n := l.open(l.faultConfig())
	id := os.Getenv("BERTH_TEST_POD")
	pod := &network.Attachment{
		SandboxID: id, NetNS: l.path("pod-" + id[:11]), Name: "pod", Namespace: "default", UID: "uid-1",
		Ports: []network.Port{{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}},
	}
	if os.Getenv("BERTH_TEST_VERB") == "ADD" {
		_, _ = n.Attach(context.Background(), pod) // it is killed in it
	} else {
		_ = n.Detach(context.Background(), pod)
	}
}

// wantNoAttachment waits for the DELs that are repeated in the background.
func (l *lab) wantNoAttachment(n *cni.Network) {
	l.t.Helper()
	for deadline := time.Now().Add(require.Patience(30 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		info := n.Info()
		if info["attachments"] == "0" && info["pendingDeletes"] == "" {
			return
		}
		if time.Now().After(deadline) {
			l.t.Errorf("attachments are left: %v", info)
			return
		}
	}
}

// keepsMasquerade: the plugin bridge removes the link, then runs IPAM's DEL, and then removes its
// masquerade rules, for the addresses of the link. If IPAM's DEL fails, a second DEL finds no link.
// In process it finds them by name.
func (f plantedFault) keepsMasquerade() bool {
	return !f.inProcess && f.plugin == "host-local" && f.verb == "DEL"
}

// wantNothingLeft compares what the kernel and the disk have with nothing.
func (l *lab) wantNothingLeft(f plantedFault, sandbox string) {
	l.t.Helper()
	if links := l.run(l.host, "ip", "-o", "link"); strings.Contains(links, "veth") {
		l.t.Errorf("links are left:\n%s", links)
	}
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		for line := range strings.Lines(l.run(l.host, program)) {
			if f.keepsMasquerade() && strings.Contains(line, `name: \"faults\" id:`) {
				continue
			}
			if strings.Contains(line, "CNI-DN-") || strings.Contains(line, "10.88.0.") || strings.Contains(line, sandbox) {
				l.t.Errorf("a rule is left (%s): %s", program, line)
			}
		}
	}
	environs, err := filepath.Glob("/proc/[1-9]*/environ")
	if err != nil {
		l.t.Error(err)
	}
	for _, file := range environs {
		if environ, err := os.ReadFile(file); err == nil && strings.Contains(string(environ), "CNI_CONTAINERID="+sandbox) && strings.Contains(string(environ), l.dir) {
			l.t.Errorf("a plugin runs on: %s", file)
		}
	}
	for _, dir := range []string{"store/faults", "root/attachments", "root/cache/results"} {
		entries, err := os.ReadDir(l.path(dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			l.t.Error(err)
		}
		for _, e := range entries {
			if name := e.Name(); name != "lock" && !strings.HasPrefix(name, "last_reserved_ip") {
				l.t.Errorf("%s/%s is left", dir, name)
			}
		}
	}
}

// testFaults tests cases of the matrix, some at a time.
func testFaults(t *testing.T, cases []plantedFault) {
	require.Root(t)
	for _, program := range append([]string{"ip", "iptables-save", "ip6tables-save"}, slices.Collect(func(yield func(string) bool) {
		for _, plugin := range chainOfPlugins {
			if !yield(real(plugin)) {
				return
			}
		}
	})...) {
		require.Binary(t, program)
	}
	for _, f := range cases {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			testFault(t, f)
		})
	}
}

// TestFaults: each fault once, with plugins, verbs and what follows in turn. TestFaultMatrix has all.
func TestFaults(t *testing.T) { testFaults(t, someFaults(false)) }

// TestFaultsInProcess: the same where the other plugins of the chain run in process, without the faults that cost a
// timeout, and with the case that leaves rules of masquerade behind where bridge is a program.
func TestFaultsInProcess(t *testing.T) {
	cases := slices.DeleteFunc(someFaults(true), func(f plantedFault) bool { return strings.HasPrefix(f.fault, "hang") })
	testFaults(t, append(cases, plantedFault{"host-local", "DEL", "error before", "stop", true}))
}

func someFaults(inProcess bool) (cases []plantedFault) {
	for i, fault := range faultNames {
		cases = append(cases, plantedFault{chainOfPlugins[i%len(chainOfPlugins)], []string{"ADD", "DEL"}[i/2%2], fault, thenNames[(i+1)%len(thenNames)], inProcess})
	}
	return cases
}
