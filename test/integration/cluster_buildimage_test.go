//go:build integration

package integration

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// strap stands for a debootstrap at work: it has mounted something in the root file system, and has
// a child process there.
const strap = `#!/bin/sh
for last; do :; done
mkdir -p "$last/proc"
mount -t tmpfs strap "$last/proc"
mkdir "$last/proc/busy"
( cd "$last/proc/busy"; echo $(exec sh -c 'echo $PPID') > "$READY"; while :; do read -r never < "$NEVER"; done ) &
wait
`

// adm stands for kubeadm and kubelet.
const adm = `#!/bin/sh
case "$*" in
"version -o short") echo v1.36.3 ;;
"--version") echo Kubernetes v1.36.3 ;;
*) for c in kube-apiserver kube-controller-manager kube-scheduler kube-proxy; do echo "registry.k8s.io/$c:v1.36.3"; done
   echo registry.k8s.io/coredns/coredns:v1.14.2; echo registry.k8s.io/etcd:3.6.8-0 ;;
esac
`

// TestBuildImageInterrupted: an interrupted build of the node image leaves no directory, no mount
// and no process.
func TestBuildImageInterrupted(t *testing.T) {
	require.Root(t)
	bin, err := filepath.Abs(os.Getenv("BERTH_BIN"))
	if err != nil {
		t.Fatal(err)
	}
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) { interruptBuild(t, bin, signal) })
	}
}

func interruptBuild(t *testing.T, bin string, signal syscall.Signal) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, fifo := range []string{"ready", "never"} {
		if err := syscall.Mkfifo(at(fifo), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"work", "path", "kube"} {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	scripts := map[string]string{"path/debootstrap": strap}
	for _, name := range []string{"kubeadm", "kubelet", "kubectl"} {
		scripts["kube/"+name] = adm
	}
	for name, text := range scripts {
		if err := os.WriteFile(at(name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "etcd", "coredns"} {
		if err := os.Symlink(filepath.Join(bin, "hello"), at("kube/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "berth"), "cluster", "build-image", "--kubernetes", at("kube"), "--work", at("work"), "--output", at("node.tar"))
	cmd.Env = append(os.Environ(), "PATH="+at("path")+":"+os.Getenv("PATH"), "READY="+at("ready"), "NEVER="+at("never"))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ready := make(chan string, 1)
	go func() {
		text, _ := os.ReadFile(at("ready")) // until the child has started
		ready <- strings.TrimSpace(string(text))
	}()
	go func() { ended <- cmd.Wait() }()
	var child string
	select {
	case child = <-ready:
	case err := <-ended:
		t.Fatalf("it has ended by itself: %v\n%s", err, said.String())
	}
	if err := cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; cmd.ProcessState.ExitCode() != 128+int(signal) {
		t.Errorf("it ended with %v\n%s", err, said.String())
	}
	for _, name := range []string{"work", "node.tar"} {
		if left, err := os.ReadDir(at(name)); name == "work" && (err != nil || len(left) > 0) || name != "work" && err == nil {
			t.Errorf("%s: left are %v, %v", name, left, err)
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("mounts are left: %v\n%s", err, mounts)
	}
	if text, err := os.ReadFile("/proc/" + child + "/cmdline"); child == "" || err == nil && strings.Contains(string(text), "debootstrap") {
		t.Errorf("process %q goes on: %q", child, text)
	}
}
