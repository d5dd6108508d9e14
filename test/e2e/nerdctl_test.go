//go:build e2e

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

const (
	// containerdConf keeps all of a containerd below one directory. Nodes need no CRI of it.
	containerdConf = `version = 3
root = "@DIR@/root"
state = "@DIR@/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"]
[grpc]
address = "@DIR@/containerd.sock"
[ttrpc]
address = "@DIR@/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "@DIR@/opt"
`
	nerdctlConf = `address = "unix://@DIR@/containerd.sock"
namespace = "@NAMESPACE@"
data_root = "@DIR@/data"
cni_path = "/usr/lib/cni"
cni_netconfpath = "@DIR@/net.d"
cgroup_manager = "cgroupfs"
`
	// nerdctlMounts moves into the test's own directories what no option moves.
	nerdctlMounts = `set -e
for path in @HOLDS@; do mkdir -p "@DIR@/holds/$path"; mount --bind "@DIR@/holds/$path" "$path"; done
exec "@DIR@/bin/containerd" --config "@DIR@/containerd.toml"
`
)

// nerdctlHolds are directories of the host that nerdctl, CNI and containerd's shims write to, with
// any configuration.
func nerdctlHolds() []string { return []string{"/run/containerd", "/run/nerdctl", "/var/lib/cni"} }

// nerdctlProgram is the one that NERDCTL names, or that is in PATH: no package source here has it.
func nerdctlProgram(t *testing.T) string {
	t.Helper()
	if given := os.Getenv("NERDCTL"); given != "" {
		path, err := filepath.Abs(given)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	return require.Binary(t, "nerdctl")
}

// nerdctlOnly starts a current containerd of the test's own, and puts a nerdctl for it into PATH.
// No other process uses its storage, networks, mounts and network namespace. It returns the name of
// the namespace.
func nerdctlOnly(t *testing.T) (namespace string) {
	t.Helper()
	require.Root(t)
	program := nerdctlProgram(t)
	require.Binary(t, "jq")
	if _, err := os.Stat("/usr/lib/cni/firewall"); err != nil {
		t.Fatalf("containernetworking-plugins is not installed: %v", err)
	}
	dir := t.TempDir()
	namespace = fmt.Sprintf("berth-nerdctl-%d", os.Getpid())
	host(t, "ip", "netns", "add", namespace)
	t.Cleanup(func() { host(t, "ip", "netns", "del", namespace) })
	host(t, "ip", "-n", namespace, "link", "set", "lo", "up")
	currentContainerdIn(t, dir)
	write := func(name, text string) {
		text = strings.NewReplacer("@DIR@", dir, "@NAMESPACE@", namespace, "@HOLDS@", strings.Join(nerdctlHolds(), " ")).Replace(text)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("containerd.toml", containerdConf)
	write("nerdctl.toml", nerdctlConf)
	write("start", nerdctlMounts)
	pid := startContainerd(t, dir, namespace)
	write("nerdctl", fmt.Sprintf("#!/bin/sh\nexport NERDCTL_TOML=@DIR@/nerdctl.toml\nexec nsenter --net=/run/netns/@NAMESPACE@ --mount=/proc/%d/ns/mnt %s \"$@\"\n", pid, program))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Cleanup(func() {
		if all := host(t, "nerdctl", "ps", "-aq"); all != "" {
			host(t, append([]string{"nerdctl", "rm", "-fv"}, strings.Fields(all)...)...)
		}
	})
	return namespace
}

// currentContainerdIn unpacks the containerd of the assets, with a runc that requests only what the
// host allows.
func currentContainerdIn(t *testing.T, dir string) {
	t.Helper()
	archives, err := filepath.Glob("../../out/systemd-assets/containerd-*.tar.gz")
	if err != nil || len(archives) != 1 {
		t.Fatalf("containerd is not built: run test/systemd/containerd.sh out/systemd-assets: %q, %v", archives, err)
	}
	host(t, "tar", "-C", dir, "-xzf", archives[0])
	fit, err := filepath.Abs("testdata/runc-fit")
	if err != nil {
		t.Fatal(err)
	}
	asset, err := os.ReadFile("../../out/systemd-assets/runc." + runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	wrapper := fmt.Sprintf("#!/bin/sh\nPATH=%s/real:$PATH exec %s \"$@\"\n", dir, fit)
	for path, content := range map[string][]byte{"real/runc": asset, "bin/runc": []byte(wrapper)} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// startContainerd runs a containerd until the test ends, in a mount namespace of its own. It waits
// until the containerd listens, and returns its process.
func startContainerd(t *testing.T, dir, namespace string) int {
	t.Helper()
	for _, path := range nerdctlHolds() {
		err := os.Mkdir(path, 0o755)
		switch {
		case err == nil:
			t.Cleanup(func() { _ = os.Remove(path) }) // another process may use it by now
		case !os.IsExist(err):
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(dir, "containerd.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "--net=/run/netns/"+namespace, "unshare", "--mount", "sh", filepath.Join(dir, "start"))
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended // its status after a signal means nothing
		log.Close()
		removeGroups(namespace)
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the end of containerd's log:\n%s", text[max(0, len(text)-8<<10):])
		}
	})
	deadline := time.Now().Add(require.Patience(time.Minute))
	for {
		if info, err := os.Stat(filepath.Join(dir, "containerd.sock")); err == nil && info.Mode()&fs.ModeSocket != 0 {
			return cmd.Process.Pid
		}
		select {
		case err := <-ended:
			ended <- err
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("containerd ended: %v\n%s", err, text)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("containerd does not listen")
		}
	}
}
