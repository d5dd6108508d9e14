package facts

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// Describe writes a commented node file for a machine as it is. The runtime is the one that the
// machine's kubelet uses or that is installed, else berth. The file has the fields that differ from
// their defaults, or, with all, every field.
func Describe(ctx context.Context, host provision.Host, all bool) (string, error) {
	d, err := Distro(host.Files())
	if err != nil {
		return "", err
	}
	n := nodefile.Default()
	found := []string{d.Name + ", " + goruntime.GOARCH}
	if !d.Tested {
		found = append(found, "berth has no table for this release and takes it for the nearest one it knows")
	}
	found = append(found, describeRuntime(ctx, host, n)...)
	found = append(found, describeKubelet(host, n)...)
	found = append(found, describeMachine(host.Files(), n)...)
	var text strings.Builder
	text.WriteString("# Node file for `berth node plan` and `berth node apply`.\n# Found on this machine:\n")
	for _, line := range found {
		fmt.Fprintf(&text, "# - %s\n", line)
	}
	if all {
		text.WriteString("# Lines that begin with # and a field show what else can be said.\n\n" + nodefile.Sample(n))
	} else {
		text.WriteString("# `berth node init --all` shows what else can be said, `berth node reference` explains it.\n\n" + nodefile.Short(n))
	}
	return text.String(), nil
}

// describeRuntime chooses the runtime that is there.
func describeRuntime(ctx context.Context, host provision.Host, n *nodefile.Node) []string {
	endpoint, berthsSocket := kubeletEndpoint(host), crisock.Path(crisock.Configured(host.Files(), "berth"))
	candidates := []struct{ name, binary, socket string }{
		{"berth", "berth-supervisor", berthsSocket},
		{"containerd", "containerd", "/run/containerd/containerd.sock"},
		{"crio", "crio", "/run/crio/crio.sock"},
		{"docker", "dockerd", "/run/cri-dockerd.sock"},
	}
	overDocker := crisock.BerthsEngine(host.Files()) == "docker"
	if overDocker {
		candidates = candidates[1:]
		candidates[len(candidates)-1].socket = berthsSocket
	}
	for _, candidate := range candidates {
		uses := crisock.Path(endpoint) == candidate.socket
		installed := provision.FirstExisting(host.Files(), "/usr/bin/"+candidate.binary, "/usr/local/bin/"+candidate.binary, "/usr/sbin/"+candidate.binary)
		if !uses && (installed == "" || endpoint != "") {
			continue
		}
		// docker brings containerd along, so docker was meant.
		if candidate.name == "containerd" && !uses && provision.Exists(host.Files(), "/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd") {
			continue
		}
		n.Runtime.Name = candidate.name
		if candidate.name == "docker" && overDocker {
			n.Runtime.Socket = berthsSocket
		}
		line := "runtime " + candidate.name
		if v, known := RuntimeVersions(ctx, host, candidate.name)[candidate.name]; known {
			line += " " + v.String()
		}
		if uses {
			line += ", which the kubelet talks to"
		}
		if strings.HasPrefix(installed, "/usr/local/") && candidate.name != "berth" {
			n.Runtime.SkipInstall = true
			line += "; it is not of a package, so skipInstall leaves it as it is"
			if v, known := RuntimeVersions(ctx, host, candidate.name)[candidate.name]; known {
				n.Runtime.Version = v.String()
			}
		}
		return []string{line}
	}
	return []string{"no runtime, so berth it is"}
}

// kubeletEndpoint is the socket that the kubelet of this machine talks to, or "". A configuration
// that cannot be read counts as absent.
func kubeletEndpoint(host provision.Host) string {
	k, err := kubelet.Find(host)
	if err == nil && k.Silent(host.Files()) {
		return kubelet.DefaultEndpoint
	}
	return k.Endpoint.Text
}

// describeKubelet takes over the settings of an existing kubelet, and does not manage the kubelet. A
// kubelet without its configuration, as packages bring it, waits for kubeadm.
func describeKubelet(host provision.Host, n *nodefile.Node) []string {
	k, _ := kubelet.Find(host)
	if !k.SetUp(host.Files()) && provision.Exists(host.Files(), "/usr/bin/kubeadm", "/usr/local/bin/kubeadm", "/usr/local/sbin/kubeadm", "/usr/sbin/kubeadm", "/opt/bin/kubeadm") {
		n.Kubelet.Kubeadm = true
		return []string{"kubeadm, which will write the kubelet's configuration (kubelet.kubeadm)"}
	}
	if !k.There() {
		return nil
	}
	line := "a kubelet that somebody else set up (" + k.Source + "); it is left alone"
	if slices.Contains([]string{"systemd", "cgroupfs"}, k.Driver.Text) {
		n.Runtime.CgroupDriver = k.Driver.Text
		line += " (cgroup driver " + k.Driver.Text + ")"
	}
	return []string{line}
}

func describeMachine(files provision.Files, n *nodefile.Node) []string {
	var found []string
	if provision.Exists(files, "/dev/nvidiactl", "/usr/bin/nvidia-ctk") {
		found = append(found, "NVIDIA's driver or toolkit")
		n.Runtime.NVIDIA.Enabled = true
	}
	data, err := provision.ReadFile(files, "/etc/environment")
	if err != nil {
		return found
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch strings.ToUpper(name) {
		case "HTTP_PROXY":
			n.Proxy.HTTP = value
		case "HTTPS_PROXY":
			n.Proxy.HTTPS = value
		case "NO_PROXY":
			n.Proxy.NoProxy = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
		default:
			continue
		}
		found = append(found, "/etc/environment sets "+name)
	}
	return found
}
