// Package facts reads the facts of a machine that its tasks depend on: the distribution, the
// installed runtimes and the kubelet, the files with credentials. It changes nothing, and knows no
// task.
package facts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/cniconf"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/handover"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/preflight"
)

// OwnDir has the files of `berth node` on a machine, from earlier applies.
const OwnDir = "/etc/berth/node"

// BerthUnit runs berth, SupervisorUnit its supervisor.
const (
	BerthUnit      = "berth.service"
	SupervisorUnit = "berth-supervisor.service"
)

// Facts is what the tasks of a machine depend on.
type Facts struct {
	Distro distro.Distro
	// Arch is as Go has it: amd64, arm64, ….
	Arch string
	// SELinux is true where it is on.
	SELinux bool
	// NvidiaCTK is the path of nvidia-ctk, empty when it is not installed.
	NvidiaCTK string
	// NvidiaRefresh is true when the toolkit keeps its CDI specification up to date by
	// a unit of its own.
	NvidiaRefresh bool
	// Versions of runtimes that are there, by name.
	Versions map[string]nodefile.Version
	// Credentials maps the files that the node file names to their content.
	Credentials map[string]string
	// Berth and Supervisor are the binaries that run now; they have a digest if they are needed and
	// are not where they should be.
	Berth, Supervisor Binary
	// Replaced are the runtimes that the node file's runtime replaces.
	Replaced []Replaced
	// Disrupts says what a restart of the runtime does to running pods; empty when they keep
	// running.
	Disrupts string
	// Kubelet is true if a kubelet is set up: its configuration exists, not only the unit that an
	// apply before kubeadm wrote.
	Kubelet bool
	// KubeletBinary is the path of its binary; empty if it is not installed yet.
	KubeletBinary string
	// KubeletFiles are those that it reads its settings from.
	KubeletFiles []string
	// KubeletSilent is true if the kubelet names no endpoint, and so has its default.
	KubeletSilent bool
	// KubeletConfig is its main configuration; empty if it has none.
	KubeletConfig string
	// KubeletFixed is the endpoint that the kubelet names, if a handover cannot change it.
	KubeletFixed kubelet.Value
	// CNI is the network that the runtime finds, if the node file leaves it to others (mode cni).
	CNI cniconf.Config
	// CNIPrograms are the files in the directories that may have its plugins.
	CNIPrograms map[string][]string
	// CgroupV1 is true if the machine has cgroup v1. A kubelet from 1.35 on refuses to start on it
	// by default.
	CgroupV1 bool
	// File is the absolute path of the node file on the machine; empty when it came from elsewhere
	// (standard input).
	File string
}

// Binary is a program on the machine that applies the node file.
type Binary struct {
	Path   string
	Digest string // "sha256:…"
}

// Detect reads the facts of a machine for a description. berth is the path of the running binary,
// file that of the description. A machine that berth does not support is an error of kind
// errs.Unsupported.
func Detect(ctx context.Context, host provision.Host, n *nodefile.Node, berth, file string) (Facts, error) {
	f := Facts{Arch: goruntime.GOARCH, File: file}
	var err error
	if f.Distro, err = Distro(host.Files()); err != nil {
		return f, err
	}
	if !provision.Exists(host.Files(), "/usr/lib/systemd/systemd", "/lib/systemd/systemd") {
		return f, fmt.Errorf("%s: has no systemd, and the units of a node are systemd's: %w", f.Distro.Name, errs.Unsupported)
	}
	f.SELinux = detectSELinux(host)
	f.NvidiaCTK = provision.FirstExisting(host.Files(), "/usr/bin/nvidia-ctk", "/usr/local/bin/nvidia-ctk", "/usr/local/nvidia/toolkit/nvidia-ctk")
	f.NvidiaRefresh = provision.Exists(host.Files(), "/usr/lib/systemd/system/nvidia-cdi-refresh.service", "/etc/systemd/system/nvidia-cdi-refresh.service")
	if n.Runtime.SkipInstall || f.Distro.Immutable {
		f.Versions = RuntimeVersions(ctx, host, n.Runtime.Name)
	}
	f.CgroupV1 = preflight.CgroupV1(host)
	read := func(name string) ([]byte, error) { return provision.ReadFile(host.Files(), name) }
	var faults nodefile.FieldErrors
	if f.Credentials, faults = readCredentials(read, registryCredentials(n)); len(faults) > 0 {
		return f, faults
	}
	f.Replaced = detectReplaced(ctx, host, n)
	f.Disrupts = detectDisruption(ctx, host, n)
	// If a file that cannot be read matters, the cross-checks report it.
	k, kubeletErr := kubelet.Find(host)
	f.Kubelet, f.KubeletFiles = k.SetUp(host.Files()), k.Files
	f.KubeletSilent, f.KubeletConfig = kubeletErr == nil && k.Silent(host.Files()), k.Config
	f.KubeletFixed = fixedEndpoint(ctx, host, k)
	if f.KubeletBinary, err = detectKubelet(host.Files(), n); err != nil {
		return f, err
	}
	if err = f.detectPlugins(host.Files(), n); err != nil {
		return f, err
	}
	f.Berth = Binary{Path: berth}
	f.Supervisor = Binary{Path: path.Join(path.Dir(berth), "berth-supervisor")}
	if host.Live() && path.Dir(berth) == f.Distro.BinDir {
		return f, nil
	}
	if f.NeedsBerth(n) {
		f.Berth.Digest, err = hashBinary(host, f.Berth.Path)
	}
	if err == nil && NeedsSupervisor(n) {
		f.Supervisor.Digest, err = hashBinary(host, f.Supervisor.Path)
	}
	return f, err
}

// fixedEndpoint is the endpoint that a kubelet names, if that is in no file where a handover finds it: a process may have it from
// a script.
func fixedEndpoint(ctx context.Context, host provision.Host, k kubelet.Kubelet) kubelet.Value {
	if path.IsAbs(k.Endpoint.From) {
		objects, err := handover.KubeletEndpoint{Path: k.Endpoint.From}.Objects(ctx, host)
		if err != nil || len(objects) > 0 { // its task returns the error
			return kubelet.Value{}
		}
	}
	return k.Endpoint
}

// detectKubelet finds the kubelet's binary when the unit is ours and the binary is not.
func detectKubelet(files provision.Files, n *nodefile.Node) (string, error) {
	k := n.Kubelet
	if !k.Enabled && !k.Kubeadm || len(k.Assets) > 0 {
		return "", nil
	}
	found := provision.FirstExisting(files, "/usr/bin/kubelet", "/usr/local/bin/kubelet", "/usr/local/sbin/kubelet", "/usr/sbin/kubelet", "/opt/bin/kubelet")
	comes := slices.ContainsFunc(n.Packages.Install, func(p string) bool {
		name, _, _ := strings.Cut(p, "=")
		return name == "kubelet" || name == "kubeadm" || strings.HasPrefix(name, "kubernetes")
	})
	if found != "" || comes {
		return found, nil
	}
	return "", nodefile.FieldErrors{nodefile.NewFieldError(errs.NotFound, "kubelet", "no kubelet is in /usr/bin, /usr/local/bin or /opt/bin; install it, or name it in kubelet.assets")}
}

// detectPlugins reads which plugins the network needs, and where they are. A network that cannot be
// read counts as absent: the checks before a restart report it.
func (f *Facts) detectPlugins(files provision.Files, n *nodefile.Node) error {
	if n.Network.Mode != "cni" {
		return nil
	}
	var err error
	if f.CNI, err = cniconf.First(files, n.Network.ConfDir); err != nil {
		f.CNI = cniconf.Config{}
	}
	f.ownNetwork(n)
	f.CNIPrograms = map[string][]string{}
	for _, dir := range []string{f.Distro.CNIBinDir, f.Distro.CNIPackageDir} {
		if dir == "" {
			continue
		}
		if f.CNIPrograms[dir], err = files.ReadDir(dir); errs.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot list the CNI plugins in %s: %w", dir, err)
		}
	}
	return nil
}

// ownNetwork replaces CNI by a network of the node file's own files, if the runtime will use that.
func (f *Facts) ownNetwork(n *nodefile.Node) {
	for _, file := range n.Files {
		if path.Dir(file.Path) != path.Clean(n.Network.ConfDir) || !cniconf.Is(file.Path) || f.CNI.File != "" && file.Path > f.CNI.File {
			continue
		}
		if own, err := cniconf.Parse(file.Path, strings.NewReader(file.Content)); err == nil {
			f.CNI = own
		}
	}
}

// Distro reads os-release. An unknown distribution is an error of kind errs.Unsupported.
func Distro(files provision.Files) (distro.Distro, error) {
	for _, name := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		data, err := provision.ReadFile(files, name)
		if errors.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return distro.Distro{}, err
		}
		return distro.Detect(data)
	}
	return distro.Distro{}, fmt.Errorf("cannot find the distribution: there is no os-release: %w", errs.Unsupported)
}

// detectSELinux reads it from the kernel, or from the configuration of a machine that is not
// running.
func detectSELinux(host provision.Host) bool {
	if host.Live() {
		return provision.Exists(host.Files(), "/sys/fs/selinux/enforce")
	}
	data, err := provision.ReadFile(host.Files(), "/etc/selinux/config")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "SELINUX="); ok {
			return value == "enforcing" || value == "permissive"
		}
	}
	return false
}

// RuntimeVersions runs an installed runtime for its version. The map has one entry, or none if the
// runtime does not answer or the host is not live.
func RuntimeVersions(ctx context.Context, host provision.Host, name string) map[string]nodefile.Version {
	args := map[string][]string{
		"containerd": {"containerd", "--version"}, "crio": {"crio", "--version"}, "docker": {"dockerd", "--version"},
	}[name]
	if args == nil || !host.Live() {
		return nil
	}
	out, err := host.Run(ctx, provision.Command{Args: args})
	if err != nil {
		return nil
	}
	for word := range strings.FieldsSeq(string(out)) {
		if v, err := nodefile.ParseVersion(strings.Trim(word, ",")); err == nil {
			return map[string]nodefile.Version{name: v}
		}
	}
	return nil
}

// NeedsBerth reports whether the machine needs the program berth: as its runtime, to serve CRI over
// docker, or to apply the node file at boot.
func (f Facts) NeedsBerth(n *nodefile.Node) bool {
	return NeedsSupervisor(n) || n.BerthOverDocker() || (n.Boot.Enabled || f.Distro.Immutable) && n.Runtime.Name != "berth"
}

// NeedsSupervisor reports whether the machine needs the program berth-supervisor from where berth
// runs: as the runtime, without assets that have it.
func NeedsSupervisor(n *nodefile.Node) bool {
	return n.Runtime.Name == "berth" && !n.Runtime.SkipInstall && len(n.Runtime.Assets) == 0
}

// hashBinary hashes a binary that would be installed. It is on this machine, and not below a root
// directory.
func hashBinary(host provision.Host, name string) (string, error) {
	if host.Live() {
		sum, err := host.Files().Digest(name)
		if err != nil {
			return "", fmt.Errorf("cannot read %s, which would be installed: %w", name, err)
		}
		return sum, nil
	}
	r, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("cannot read %s, which would be installed: %w", name, err)
	}
	defer r.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, r); err != nil {
		return "", fmt.Errorf("cannot read %s: %w", name, err)
	}
	return "sha256:" + hex.EncodeToString(hash.Sum(nil)), nil
}
