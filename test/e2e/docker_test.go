//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// docker is a docker of the test's own. No other process uses its storage, networks, mounts and
// network namespace.
type docker struct {
	namespace, log string
	args           []string
	// end and kill are those of the running process; kill leaves it no time to clean up.
	end, kill func()
}

// dockerOnly starts a docker of the test's own, puts a client of it into PATH, and returns its
// network namespace.
func dockerOnly(t *testing.T) (namespace string) { return newDocker(t).namespace }

func newDocker(t *testing.T) *docker {
	t.Helper()
	require.Root(t)
	daemon, client := require.Binary(t, "dockerd"), require.Binary(t, "docker")
	require.Binary(t, "runc")
	require.Binary(t, "jq")
	runtime, err := filepath.Abs("testdata/runc-fit")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	namespace := fmt.Sprintf("berth-docker-%d", os.Getpid())
	host(t, "ip", "netns", "add", namespace)
	t.Cleanup(func() { host(t, "ip", "netns", "del", namespace) })
	host(t, "ip", "-n", namespace, "link", "set", "lo", "up")
	socket := "unix://" + filepath.Join(dir, "docker.sock")
	d := &docker{namespace: namespace, log: filepath.Join(dir, "dockerd.log"), end: func() {}}
	// Its own mounts end with it, whatever it leaves.
	d.args = []string{
		"nsenter", "--net=/run/netns/" + namespace, "unshare", "--mount", daemon,
		"--host", socket, "--data-root", filepath.Join(dir, "root"), "--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "docker.pid"),
		"--storage-driver", "overlay2", "--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", "/" + namespace,
		"--add-runtime", "fit=" + runtime, "--default-runtime", "fit",
	}
	t.Cleanup(func() {
		d.end()
		removeGroups(d.namespace)
		if t.Failed() {
			t.Logf("the end of dockerd's log:\n%s", d.logTail())
		}
	})
	d.start(t)
	wrapper := "#!/bin/sh\nexec nsenter --net=/run/netns/" + namespace + " " + client + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_HOST", socket)
	t.Setenv("DOCKER_CONFIG", dir) // no proxies
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Cleanup(func() {
		if all := host(t, "docker", "ps", "-aq"); all != "" {
			host(t, append([]string{"docker", "rm", "-fv"}, strings.Fields(all)...)...)
		}
	})
	return d
}

// start runs it, and waits until it listens.
func (d *docker) start(t *testing.T) {
	t.Helper()
	file, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(d.args[0], d.args[1:]...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listens, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(io.TeeReader(stderr, file))
		lines.Buffer(nil, 1<<20)
		for up := false; lines.Scan(); {
			if !up && strings.Contains(lines.Text(), "API listen on") {
				up = true
				close(listens)
			}
		}
		_ = cmd.Wait() // its status after a signal means nothing
		file.Close()
	}()
	d.end = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	}
	d.kill = func() {
		_ = cmd.Process.Kill()
		<-ended
		// Its containerd has died with it, but counts as running until it is reaped.
		_ = os.Remove(filepath.Join(filepath.Dir(d.log), "exec/containerd/containerd.pid"))
	}
	select {
	case <-listens:
	case <-ended:
		t.Fatalf("dockerd ended:\n%s", d.logTail())
	case <-time.After(require.Patience(2 * time.Minute)):
		t.Fatalf("dockerd does not listen:\n%s", d.logTail())
	}
}

// logTail returns the end of its log.
func (d *docker) logTail() string {
	text, _ := os.ReadFile(d.log)
	return string(text[max(0, len(text)-8<<10):])
}

// removeGroups removes the cgroups that an engine leaves.
func removeGroups(name string) {
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + name, "/sys/fs/cgroup/" + name} {
		groups, _ := filepath.Glob(pattern)
		for _, group := range groups {
			removeTree(group)
		}
	}
}

// removeTree removes a cgroup and those below, from the bottom up.
func removeTree(group string) {
	below, _ := os.ReadDir(group)
	for _, entry := range below {
		if entry.IsDir() {
			removeTree(filepath.Join(group, entry.Name()))
		}
	}
	_ = os.Remove(group)
}
