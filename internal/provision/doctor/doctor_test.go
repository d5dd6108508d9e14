package doctor_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	frame "github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/hostnet"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/doctor"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// write creates a file and its parent directories.
func write(t *testing.T, h *provisiontest.Host, path, content string) {
	t.Helper()
	at := ""
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for _, part := range parts[:len(parts)-1] {
		at += "/" + part
		if err := h.Files().Mkdir(at, provision.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Files().Write(path, strings.NewReader(content), provision.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
}

// berth has the settings of a berth that is installed with the defaults.
func berth() doctor.Berth {
	return doctor.Berth{
		File: "/etc/berth/berth.toml", Engine: "native", Socket: "/run/berth/berth.sock", Root: "/var/lib/berth", State: "/run/berth",
		Network: "cni", ConfDir: "/etc/cni/net.d", BinDirs: []string{"/opt/cni/bin", "/usr/lib/cni"}, InProcess: []string{"bridge", "host-local", "portmap"},
		CgroupDriver: "auto", SELinux: "auto", AppArmor: "auto", RegistryDirs: []string{"/etc/berth/certs.d"}, Supervisor: "/usr/bin/berth-supervisor",
	}
}

// wellMachine is a machine on which no check finds a fault but that no runtime answers: no server can
// listen on a socket of a fake.
func wellMachine(t *testing.T) *provisiontest.Host {
	h := provisiontest.New()
	for file, content := range map[string]string{
		"/etc/berth/berth.toml": "", "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
		"/proc/sys/kernel/seccomp/actions_avail": "kill_process allow\n", "/proc/sys/kernel/osrelease": "6.1.0\n", "/lib/modules/6.1.0/modules.dep": "",
		"/etc/resolv.conf": "nameserver 192.0.2.53\n",
	} {
		write(t, h, file, content)
	}
	write(t, h, "/usr/bin/berth-supervisor", "")
	if err := h.Files().SetAttr("/usr/bin/berth-supervisor", provision.Attr{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	h.AddMount(provision.Mount{Path: "/", Type: "ext4"})
	h.AddMount(provision.Mount{Path: "/sys/fs/cgroup", Type: "cgroup2"})
	for _, module := range []string{"overlay", "veth", "bridge", "nf_tables"} {
		h.SetModule(module, provision.ModuleLoaded)
	}
	for key, value := range map[string]string{
		"net.ipv4.ip_forward": "1", "net.bridge.bridge-nf-call-iptables": "1", "net.ipv6.conf.all.forwarding": "1",
		"fs.inotify.max_user_instances": "8192", "fs.inotify.max_user_watches": "1048576", "kernel.pid_max": "4194304",
		"user.max_user_namespaces": "65536", "fs.mount-max": "100000", "kernel.panic": "10", "vm.overcommit_memory": "1",
	} {
		h.SetSysctlNow(key, value)
	}
	return h
}

// lan returns a host with an address of 192.0.2.0/24.
func lan() (hostnet.Host, error) {
	return hostnet.Host{Addresses: []hostnet.Address{{Addr: netip.MustParseAddr("192.0.2.9"), Bits: 24, Link: "eth0"}}}, nil
}

// examine runs all checks of a machine.
func examine(t *testing.T, h *provisiontest.Host, berth doctor.Berth, space func(string) (doctor.Space, error)) []frame.Found {
	t.Helper()
	return examineWithin(t, time.Minute, h, berth, space)
}

// examineWithin is examine with a bound of the calls to runtimes.
func examineWithin(t *testing.T, callTimeout time.Duration, h *provisiontest.Host, berth doctor.Berth, space func(string) (doctor.Space, error)) []frame.Found {
	t.Helper()
	if space == nil {
		space = func(string) (doctor.Space, error) {
			return doctor.Space{Free: 9, Size: 10, FilesFree: 9, Files: 10}, nil
		}
	}
	h.StartProcess()
	noQuotas := func(dir string) error {
		return fmt.Errorf("the file system of %s has no project quotas: %w", dir, errs.Unsupported)
	}
	facts := doctor.New(t.Context(), h, doctor.Options{Berth: berth, Space: space, CanLimit: noQuotas, CallTimeout: callTimeout, HostNet: lan, Dial: func(_ context.Context, address string) error {
		if address == "localhost:5001" {
			return syscall.ECONNREFUSED
		}
		return nil
	}})
	found := frame.Examine(t.Context(), facts, append(doctor.OfNode(doctor.WithKubeadm(h)), doctor.OfHost()...))
	if ops := h.Ops(); len(ops) > 0 {
		t.Errorf("doctor changes the machine: %v", ops)
	}
	return found
}

// TestWell: a machine without a fault has no finding but that no runtime answers.
func TestWell(t *testing.T) {
	checks := map[string]bool{}
	for _, f := range examine(t, wellMachine(t), berth(), nil) {
		checks[f.ID] = true
		if f.Level != finding.OK && f.ID != "runtime" {
			t.Errorf("%+v", f.Finding)
		}
	}
	if want := len(doctor.OfNode(false)) + len(doctor.OfHost()); len(checks) != want {
		t.Errorf("%d checks have a finding, want %d", len(checks), want)
	}
}

// TestWithoutKubelet: a machine without a kubelet says so for one reason, and nothing about a kubelet is ok there.
func TestWithoutKubelet(t *testing.T) {
	skipped := func(h *provisiontest.Host, b doctor.Berth) (ids, reasons string) {
		var all []string
		seen := map[string]bool{}
		for _, f := range examine(t, h, b, nil) {
			if f.Skipped != "" {
				all = append(all, strings.TrimPrefix(f.ID, "kubelet"))
				seen[f.Skipped] = true
			}
		}
		return strings.Join(all, " "), strings.Join(slices.Sorted(maps.Keys(seen)), "|")
	}
	const every = " -runtime -images -pod-cidr -max-pods -eviction -seccomp -userns -sysctls"
	if ids, reasons := skipped(wellMachine(t), berth()); ids != every || reasons != "this machine has no kubelet" {
		t.Errorf("skipped %q: %s", ids, reasons)
	}
	b := berth()
	b.SeccompProfile = "/etc/berth/seccomp.json" // it is berth's as well
	if ids, _ := skipped(wellMachine(t), b); ids != strings.Replace(every, " -seccomp", "", 1) {
		t.Errorf("with a profile of berth, skipped %q", ids)
	}
	h := wellMachine(t)
	write(t, h, config, "a: b: c")
	if ids, reasons := skipped(h, berth()); ids != strings.TrimPrefix(every, " ") || reasons != "the kubelet's configuration cannot be read (see the check kubelet)" {
		t.Errorf("with a configuration that cannot be read, skipped %q: %s", ids, reasons)
	}
	h = wellMachine(t)
	write(t, h, config, "{}")
	if ids, _ := skipped(h, berth()); ids != "" {
		t.Errorf("with a kubelet, skipped %q", ids)
	}
}

// TestIDs: the ids of checks are what scripts use.
func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for _, info := range append(frame.Infos(doctor.OfNode(true)), frame.Infos(doctor.OfHost())...) {
		if seen[info.ID] || info.ID != strings.ToLower(info.ID) || strings.ContainsAny(info.ID, " _,") || info.Title == "" || info.Reads == "" {
			t.Errorf("%+v", info)
		}
		seen[info.ID] = true
	}
}

// TestModulesWithoutAList: a kernel whose modules are listed nowhere may have all of them built in.
func TestModulesWithoutAList(t *testing.T) {
	h := wellMachine(t)
	h.SetModule("veth", provision.ModuleAbsent)
	if err := h.Files().RemoveAll("/lib/modules"); err != nil {
		t.Fatal(err)
	}
	for _, f := range examine(t, h, berth(), nil) {
		if f.ID == "modules" && f.Level != finding.OK {
			t.Errorf("%+v", f.Finding)
		}
	}
}

// TestInProcessPlugins: programs of CNI plugins that berth has in its process are needed only where
// another runtime uses the configuration.
func TestInProcessPlugins(t *testing.T) {
	missing := func(h *provisiontest.Host, b doctor.Berth) string {
		var all []string
		for _, f := range examine(t, h, b, nil) {
			if f.ID == "network" && f.Level == finding.Problem {
				all = append(all, f.Object)
			}
		}
		return strings.Join(all, " ")
	}
	h := wellMachine(t)
	write(t, h, "/etc/cni/net.d/10-x.conflist", `{"plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"vrf"}]}`)
	if got := missing(h, berth()); got != "vrf" {
		t.Errorf("with berth alone %q, want vrf", got)
	}
	b := berth()
	b.InProcess = nil
	if got := missing(h, b); got != "bridge host-local vrf" {
		t.Errorf("with network.inprocess = false %q", got)
	}
	b = berth()
	b.Network = "builtin"
	if got := missing(h, b); got != "" {
		t.Errorf("with the built-in network %q", got)
	}
	b = berth()
	b.File = ""
	if got := missing(h, b); got != "bridge host-local vrf" {
		t.Errorf("without a berth %q", got)
	}
	write(t, h, "/run/containerd/containerd.sock", "")
	if got := missing(h, berth()); got != "bridge host-local vrf" {
		t.Errorf("with containerd %q", got)
	}
}

// TestExamineKubelet: a kubelet that is installed or runs is no problem.
func TestExamineKubelet(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"its program": {"/etc/systemd/system/kubelet.service": "[Service]\nExecStart=-/opt/bin/kubelet\n", "/opt/bin/kubelet": ""},
		"in PATH":     {"/etc/systemd/system/kubelet.service": "[Service]\nExecStart=kubelet --x\n"},
		"it runs":     {"/etc/systemd/system/kubelet.service": "[Service]\nExecStart=/opt/bin/kubelet\n", "/proc/12/cmdline": "/opt/kubelet\x00"},
	} {
		h := wellMachine(t)
		for file, content := range files {
			write(t, h, file, content)
		}
		for _, f := range examine(t, h, berth(), nil) {
			if f.Check == "kubelet" && f.Level != finding.OK {
				t.Errorf("%s: %s", name, f.Evidence)
			}
		}
	}
}

// TestExamineDocker: a machine that runs docker without a kubelet needs no CRI.
func TestExamineDocker(t *testing.T) {
	problem := func(h *provisiontest.Host) string {
		for _, f := range examine(t, h, berth(), nil) {
			if f.Check == "runtime" && f.Level == finding.Problem {
				return f.Evidence
			}
		}
		return ""
	}
	h := wellMachine(t)
	write(t, h, "/run/containerd/containerd.sock", "")
	write(t, h, "/usr/lib/systemd/system/docker.service", "[Service]\n")
	if problem(h) == "" {
		t.Error("a containerd without CRI is no problem, though nothing else runs")
	}
	h.StartNow("docker.service")
	if evidence := problem(h); evidence != "" {
		t.Errorf("docker's containerd is a problem: %s", evidence)
	}
	write(t, h, "/var/lib/kubelet/config.yaml", "{}")
	if problem(h) == "" {
		t.Error("a containerd without CRI is no problem, though there is a kubelet")
	}
	write(t, h, "/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/berth/berth.sock\n")
	write(t, h, "/etc/berth/berth.toml", "engine = 'docker'\n")
	if evidence := problem(h); strings.Contains(evidence, "containerd.sock") || evidence == "" {
		t.Errorf("the kubelet's berth over docker does not answer, and docker's containerd needs no CRI, but: %q", evidence)
	}
}

// TestKilledBerth: the socket of a berth that was killed has a fix that starts berth, and is reported once.
func TestKilledBerth(t *testing.T) {
	h, b := wellMachine(t), berth()
	b.Socket = leftSocket(t)
	write(t, h, b.Socket, "")
	var got []finding.Finding
	for _, f := range examine(t, h, b, nil) {
		if f.ID == "runtime" {
			got = append(got, f.Finding)
		}
	}
	if len(got) != 1 || got[0].Level != finding.Problem || got[0].Object != b.Socket ||
		!strings.Contains(got[0].Evidence, "no process listens on it: berth does not run") ||
		!strings.Contains(got[0].Fix, "systemctl start berth, or without systemd `berth serve --config /etc/berth/berth.toml`") {
		t.Errorf("%+v", got)
	}
}

// TestSocketsThatDoNotServe: a server that hangs, and what is no socket, are what they are: neither is a server without CRI,
// and a start of berth alone mends neither.
func TestSocketsThatDoNotServe(t *testing.T) {
	dir, err := os.MkdirTemp("", "mute")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	mute, err := new(net.ListenConfig).Listen(t.Context(), "unix", dir+"/mute.sock") // it accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	if err := os.WriteFile(dir+"/file.sock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for socket, want := range map[string][2]string{
		dir + "/mute.sock": {fmt.Sprintf("process %d, which listens there, has not answered within 200ms: berth hangs", os.Getpid()), "systemctl restart berth: pods run on"},
		dir + "/file.sock": {"is no socket, and berth cannot listen there", "rm -r " + dir + "/file.sock; then systemctl start berth"},
	} {
		h, b := wellMachine(t), berth()
		b.Socket = socket
		write(t, h, socket, "")
		var got []finding.Finding
		for _, f := range examineWithin(t, 200*time.Millisecond, h, b, nil) {
			if f.ID == "runtime" {
				got = append(got, f.Finding)
			}
		}
		if len(got) != 1 || got[0].Level != finding.Problem || got[0].Object != socket || !strings.Contains(got[0].Evidence, want[0]) || !strings.Contains(got[0].Fix, want[1]) {
			t.Errorf("%s: %+v", socket, got)
		}
	}
}

// leftSocket is a socket whose server has ended without removing it.
func leftSocket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "left") // the name of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/berth.sock", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	return dir + "/berth.sock"
}
