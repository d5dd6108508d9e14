package preflight

import (
	"context"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// programs are those that kubeadm and the kubelet run.
func programs(_ context.Context, s *survey) error {
	for _, want := range []struct {
		name, pkg string
		who       Who
	}{
		{"losetup", "mount or util-linux", Both},
		{"mount", "mount or util-linux", Both},
		{"cp", "coreutils", Both},
		{"conntrack", "conntrack or conntrack-tools", s.before(1, 32)},
		{"iptables", "iptables", Nobody},
	} {
		if want.who != "" && program(s.host, want.name) == "" {
			note := ""
			if want.name == "iptables" {
				note = ", which kube-proxy and CNI plugins of the machine's own may want"
			}
			s.add("FileExisting-"+want.name, want.who, want.name+" is not in PATH"+note, "install it: the package "+want.pkg+"; packages.base of the node file does")
		}
	}
	return nil
}

// before is Both for a kubelet that is older, else nobody minds.
func (s *survey) before(major, minor int) Who {
	if s.version == (version{}) || s.version.atLeast(major, minor) {
		return ""
	}
	return Both
}

// hostname must be a name of a node, and be known.
func hostname(ctx context.Context, s *survey) error {
	said, err := text(s.host, "/proc/sys/kernel/hostname")
	name := strings.ToLower(strings.TrimSpace(said))
	if err != nil || name == "" {
		return err
	}
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`).MatchString(name) {
		s.add("Hostname", Both, fmt.Sprintf("%q cannot be the name of a node", name), "hostnamectl set-hostname NAME, of small letters, digits, - and .; or --node-name")
		return nil
	}
	// As the machine's own resolver has it, /etc/nsswitch.conf included.
	if _, err := s.host.Run(ctx, provision.Command{Args: []string{"getent", "ahosts", name}}); err != nil {
		s.add("Hostname", Nobody, fmt.Sprintf("the machine does not know its own name %s: getent ahosts finds nothing", name),
			"name it in /etc/hosts or in DNS; files of the node file can")
	}
	return nil
}

// resolver is what pods with dnsPolicy Default, CoreDNS among them, ask.
func resolver(ctx context.Context, s *survey) error {
	const stub, real = "/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"
	resolved, err := s.active(ctx, "systemd-resolved.service")
	if err != nil {
		return err
	}
	if resolved {
		if !provision.Exists(s.host.Files(), real) {
			s.add("resolv.conf", Nobody, "systemd-resolved runs, so kubeadm gives pods "+real+", which is not there", "systemctl restart systemd-resolved")
		}
		return nil
	}
	said, err := text(s.host, stub)
	if err != nil {
		return err
	}
	for line := range strings.Lines(said) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if at, err := netip.ParseAddr(words[1]); err == nil && at.IsLoopback() {
			s.add("resolv.conf", Nobody, fmt.Sprintf("%s names %s, which is the pod itself to a pod; CoreDNS ends with \"Loop detected\"", stub, words[1]),
				"resolvConf in the KubeletConfiguration, of a file with the servers behind it; kubeadm sets it where systemd-resolved runs")
		}
	}
	return nil
}

// firewall: kubeadm opens no port.
func firewall(ctx context.Context, s *survey) error {
	on, err := s.active(ctx, "firewalld.service")
	if on {
		s.add("Firewalld", Nobody, "firewalld runs", "open 6443/tcp (control plane) and 10250/tcp: firewall-cmd --permanent --add-port=…, then --reload")
	}
	return err
}

// What a control plane needs at least.
const (
	leastCPUs   = 2
	leastMemory = 1700 // MB, as kubeadm counts
)

// size is that of the machine.
func size(_ context.Context, s *survey) error {
	cpus, err := text(s.host, "/proc/cpuinfo")
	if err != nil {
		return err
	}
	if n := len(regexp.MustCompile(`(?m)^processor[\s:]`).FindAllString(cpus, -1)); n > 0 && n < leastCPUs {
		s.add("NumCPU", Init, fmt.Sprintf("the machine has %d CPU", n), fmt.Sprintf("a control plane wants %d", leastCPUs))
	}
	memory, err := text(s.host, "/proc/meminfo")
	if err != nil {
		return err
	}
	if m := regexp.MustCompile(`(?m)^MemTotal:\s+(\d+) kB`).FindStringSubmatch(memory); m != nil {
		if kib, err := strconv.Atoi(m[1]); err == nil && kib>>10 < leastMemory {
			s.add("Mem", Init, fmt.Sprintf("the machine has %d MB of memory", kib>>10), fmt.Sprintf("a control plane wants %d", leastMemory))
		}
	}
	return nil
}

// ports must be free.
func ports(_ context.Context, s *survey) error {
	taken, err := listening(s.host)
	if err != nil {
		return err
	}
	for _, want := range []struct {
		port int
		who  Who
	}{{10250, Both}, {6443, Init}, {10259, Init}, {10257, Init}, {2379, Init}, {2380, Init}} {
		inode, is := taken[want.port]
		if !is {
			continue
		}
		by := "somebody"
		if process := holder(s.host, inode); process != "" {
			by = process
		}
		s.add(fmt.Sprintf("Port-%d", want.port), want.who, fmt.Sprintf("port %d is in use by %s", want.port, by), "end it; if it is of an older cluster: "+s.reset())
	}
	return nil
}

// listening maps ports on which somebody listens to the socket's inode.
func listening(host provision.Host) (map[int]string, error) {
	taken := map[int]string{}
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		said, err := text(host, name)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(said) {
			words := strings.Fields(line)
			if len(words) < 10 || words[3] != "0A" { // TCP_LISTEN
				continue
			}
			_, port, _ := strings.Cut(words[1], ":")
			if n, err := strconv.ParseUint(port, 16, 16); err == nil {
				taken[int(n)] = words[9]
			}
		}
	}
	return taken, nil
}

// holder names the process that has a socket; "" where it is not seen.
func holder(host provision.Host, inode string) string {
	processes, err := host.Files().ReadDir("/proc")
	if err != nil {
		return ""
	}
	for _, pid := range processes {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		dir := path.Join("/proc", pid, "fd")
		names, err := host.Files().ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, name := range names {
			if info, err := host.Files().Stat(path.Join(dir, name)); err == nil && info.Target == "socket:["+inode+"]" {
				comm, _ := text(host, path.Join("/proc", pid, "comm"))
				return fmt.Sprintf("%s (process %s)", strings.TrimSpace(comm), pid)
			}
		}
	}
	return ""
}

const kubeletConf = "/etc/kubernetes/kubelet.conf"

// leftovers are files that kubeadm will not write over.
func leftovers(_ context.Context, s *survey) error {
	fix := "if they are of an older cluster: " + s.reset() + "; else move them away"
	for _, file := range []struct {
		path string
		who  Who
	}{
		{"/etc/kubernetes/bootstrap-kubelet.conf", Join},
		{"/etc/kubernetes/pki/ca.crt", Join},
		{"/etc/kubernetes/manifests/kube-apiserver.yaml", Init},
		{"/etc/kubernetes/manifests/kube-controller-manager.yaml", Init},
		{"/etc/kubernetes/manifests/kube-scheduler.yaml", Init},
		{"/etc/kubernetes/manifests/etcd.yaml", Init},
	} {
		if provision.Exists(s.host.Files(), file.path) {
			s.add("FileAvailable-"+strings.ReplaceAll(file.path, "/", "-"), file.who, file.path+" is there", fix)
		}
	}
	for _, dir := range []struct {
		path, what string
		who        Who
	}{
		{"/var/lib/etcd", "", Init},
		{"/etc/kubernetes/manifests", ", and the kubelet will run what is in it", Nobody},
		{"/var/lib/kubelet/pods", ": the kubelet has had pods", Nobody},
	} {
		names, err := s.host.Files().ReadDir(dir.path)
		if err := errs.IgnoreNotFound(err); err != nil {
			return err
		}
		if len(names) > 0 {
			s.add("DirAvailable-"+strings.ReplaceAll(dir.path, "/", "-"), dir.who, fmt.Sprintf("%s is not empty%s: %s", dir.path, dir.what, some(names)), fix)
		}
	}
	return nil
}

// some names the first of many.
func some(names []string) string {
	const most = 3
	if len(names) <= most {
		return list(names)
	}
	return fmt.Sprintf("%s and %d more", list(slices.Clone(names[:most])), len(names)-most)
}
