// Package kubelet runs a real kubelet against a berth. Its pods are static ones from a directory,
// and those of an API server if it has one.
package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
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
	"github.com/berthrun/berth/test/harness"
	corev1 "k8s.io/api/core/v1"
)

// nodeIP is the address of a harness's host.
const nodeIP = "192.0.2.10"

// Options of a kubelet.
type Options struct {
	// Config is added to the KubeletConfiguration, as YAML lines.
	Config string
	// CgroupDriver is "cgroupfs" unless set.
	CgroupDriver string
	// Args are added to the kubelet's flags.
	Args []string
	// Dir is the kubelet's directory, which then has its log as well; "" is one in that of the berth.
	Dir string
	// Kubeconfig is the path of one for an API server, which may then reach the kubelet at the
	// node's address. With "" the kubelet has static pods only.
	Kubeconfig string
}

// Kubelet is a running kubelet.
type Kubelet struct {
	t         testing.TB
	berth     *harness.Berth
	dir       string
	manifests string
	process   *exec.Cmd
	logFile   string
	args      []string
	// address is where its ports listen.
	address string
	// cgroups is the topmost cgroup of its pods.
	cgroups string
}

// Start starts a kubelet that uses the berth, and stops it with the test. The berth's own clean-up
// removes its pods.
func Start(t testing.TB, b *harness.Berth, opts Options) *Kubelet {
	t.Helper()
	k := &Kubelet{t: t, berth: b, args: opts.Args, cgroups: "kubepods", dir: cmp.Or(opts.Dir, filepath.Join(b.Dir, "kubelet"))}
	k.manifests = filepath.Join(k.dir, "manifests")
	k.logFile = filepath.Join(cmp.Or(opts.Dir, b.Dir), "kubelet.log")
	for _, dir := range []string{k.manifests, k.Root(), k.Logs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	k.address = "127.0.0.1"
	if opts.Kubeconfig != "" {
		k.address = nodeIP
		k.args = append([]string{"--kubeconfig=" + opts.Kubeconfig}, k.args...)
	}
	driver, cgroupRoot := opts.CgroupDriver, "/"
	if driver == "" {
		// Kubelets that share a root kill each other's pods.
		k.cgroups = filepath.Base(b.Dir)
		driver, cgroupRoot = "cgroupfs", "/"+k.cgroups
		makeCgroups(t, k.cgroups)
	}
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: %s
cgroupRoot: %s
oomScoreAdj: 0
failSwapOn: false
staticPodPath: %s
podLogsDir: %s
resolvConf: ""
address: %s
readOnlyPort: 10255
fileCheckFrequency: 1s
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: "100Mi", nodefs.available: "1%%", imagefs.available: "1%%"}
imageGCHighThresholdPercent: 100
%s
`, driver, cgroupRoot, k.manifests, k.Logs(), k.address, opts.Config)
	if err := os.WriteFile(filepath.Join(k.dir, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.cleanup)
	k.Launch()
	return k
}

// Launch starts the kubelet's process.
func (k *Kubelet) Launch() {
	k.t.Helper()
	binary := os.Getenv("KUBELET")
	if binary == "" {
		k.t.Fatal("KUBELET is not set: run `make e2e`, or test/kube/build.sh and set it to the kubelet")
	}
	log, err := os.OpenFile(k.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		k.t.Fatal(err)
	}
	defer log.Close()
	argv := append([]string{
		binary,
		"--config=" + filepath.Join(k.dir, "config.yaml"),
		"--container-runtime-endpoint=unix://" + k.berth.Socket,
		"--root-dir=" + k.Root(),
		"--cert-dir=" + filepath.Join(k.dir, "certs"),
		"--hostname-override=node0", "--node-ip=" + nodeIP, "--v=2",
	}, k.args...)
	k.process = k.berth.InHost(argv[0], argv[1:]...)
	k.process.Stdout, k.process.Stderr = log, log
	if err := k.process.Start(); err != nil {
		k.t.Fatal(err)
	}
}

// Logs is the directory of its pods' logs.
func (k *Kubelet) Logs() string { return filepath.Join(k.dir, "logs") }

// Root is the directory where the kubelet keeps the state of pods.
func (k *Kubelet) Root() string { return filepath.Join(k.dir, "root") }

// Kill ends the kubelet's process at once; its pods keep running.
func (k *Kubelet) Kill() { k.end(syscall.SIGKILL) }

// Stop ends the kubelet's process by SIGTERM; its pods keep running.
func (k *Kubelet) Stop() { k.end(syscall.SIGTERM) }

func (k *Kubelet) end(sig syscall.Signal) {
	_ = k.process.Process.Signal(sig)
	_ = k.process.Wait()
}

// Add makes a static pod from a manifest.
func (k *Kubelet) Add(name, manifest string) {
	k.t.Helper()
	// The kubelet ignores files whose names start with a dot, and must not see a manifest half written: it ends a pod
	// whose manifest it cannot parse.
	unfinished := filepath.Join(k.manifests, "."+name)
	if err := os.WriteFile(unfinished, []byte(manifest), 0o600); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Rename(unfinished, filepath.Join(k.manifests, name+".yaml")); err != nil {
		k.t.Fatal(err)
	}
}

// Remove removes a static pod.
func (k *Kubelet) Remove(name string) {
	k.t.Helper()
	if err := os.Remove(filepath.Join(k.manifests, name+".yaml")); err != nil {
		k.t.Fatal(err)
	}
}

// Get fetches a path of the kubelet's read-only port.
func (k *Kubelet) Get(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), require.Patience(10*time.Second))
	defer cancel()
	cmd := k.berth.InHost("curl", "-sS", "-f", "http://"+k.address+":10255"+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	data, readErr := io.ReadAll(out)
	if err := cmd.Wait(); err != nil {
		return nil, err
	}
	return data, readErr
}

// Pods returns the pods as the kubelet sees them, by name without the node's.
func (k *Kubelet) Pods() map[string]corev1.Pod {
	data, err := k.Get("/pods")
	var list corev1.PodList
	if err != nil || json.Unmarshal(data, &list) != nil {
		return nil
	}
	pods := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		pods[strings.TrimSuffix(pod.Name, "-node0")] = pod
	}
	return pods
}

// AwaitReady waits until every named pod is Running and Ready.
func (k *Kubelet) AwaitReady(names ...string) {
	k.t.Helper()
	k.Await(fmt.Sprintf("pods %v to be ready", names), func() bool {
		pods := k.Pods()
		for _, name := range names {
			if !ready(pods[name]) {
				return false
			}
		}
		return true
	})
}

func ready(pod corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return pod.Status.Phase == corev1.PodRunning && condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Await polls for a condition that has no event to wait for, for three minutes
// (longer on a slow machine).
func (k *Kubelet) Await(what string, done func() bool) {
	k.t.Helper()
	deadline := time.Now().Add(require.Patience(3 * time.Minute))
	for !done() {
		if time.Now().After(deadline) {
			k.t.Fatalf("timed out waiting for %s; end of the kubelet's log:\n%s", what, k.LogTail())
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// Log is the kubelet's log.
func (k *Kubelet) Log() string {
	data, err := os.ReadFile(k.logFile)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// LogTail is the end of the kubelet's log.
func (k *Kubelet) LogTail() string {
	log := k.Log()
	return log[max(0, len(log)-8<<10):]
}

// cleanup ends the kubelet and unmounts what it mounted for its pods.
func (k *Kubelet) cleanup() {
	if k.t.Failed() {
		k.t.Logf("end of the kubelet's log:\n%s", k.LogTail())
	}
	k.Kill()
	k.berth.RemoveAllPods()
	for _, mount := range harness.FindLeftovers(k.dir).Mounts {
		_ = syscall.Unmount(mount, syscall.MNT_DETACH)
	}
	// The kubelet owns the cgroups of its pods. Once it is gone, no other component removes them.
	removeCgroups(k.cgroups)
}

// makeCgroups makes a cgroup in every hierarchy.
func makeCgroups(t testing.TB, name string) {
	t.Helper()
	roots := []string{"/sys/fs/cgroup"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err != nil {
		if roots, err = filepath.Glob("/sys/fs/cgroup/*"); err != nil {
			t.Fatal(err)
		}
	}
	for _, root := range roots {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue // no hierarchy
		}
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func removeCgroups(name string) {
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + name, "/sys/fs/cgroup/" + name, "/sys/fs/cgroup/" + name + ".slice"} {
		roots, _ := filepath.Glob(pattern)
		for _, root := range roots {
			var dirs []string
			_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
				if err == nil && entry.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			for i := len(dirs) - 1; i >= 0; i-- {
				_ = os.Remove(dirs[i])
			}
		}
	}
}
