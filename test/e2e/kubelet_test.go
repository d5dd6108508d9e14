//go:build e2e

// Package e2e contains the long tests: a real kubelet, and hundreds of crashes and leak checks.
package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/kubelet"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestKubeletRunsTenPodsThroughRestarts(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	k := kubelet.Start(t, b, kubelet.Options{})
	var names []string
	begin := time.Now()
	for name, manifest := range kubelet.Manifests(10, time.Second) {
		k.Add(name, manifest)
		names = append(names, name)
	}
	k.AwaitReady(names...)
	t.Logf("ten pods ready %v after the kubelet's start", time.Since(begin).Round(100*time.Millisecond))
	before := k.Restarts()

	k.Kill()
	k.Launch()
	k.AwaitReady(names...)
	b.KillDaemon()
	b.StartDaemon()
	k.AwaitReady(names...)
	b.StopDaemon()
	b.StartDaemon()
	k.AwaitReady(names...)
	harness.Kill(t, b.SupervisorPid())
	k.AwaitReady(names...)
	// Probes run every second: three more rounds show restarts that probes would cause.
	time.Sleep(6 * time.Second)
	k.AwaitReady(names...)
	for name, count := range k.Restarts() {
		if count != before[name] {
			t.Errorf("%s was restarted %d times", name, count-before[name])
		}
	}
	for _, sandbox := range sandboxes(t, b) {
		if sandbox.Metadata.Attempt != 0 {
			t.Errorf("sandbox of %s is attempt %d, want 0", sandbox.Metadata.Name, sandbox.Metadata.Attempt)
		}
	}
	for _, name := range names {
		k.Remove(name)
	}
	k.Await("all pods to be gone", func() bool { return len(k.Pods()) == 0 && len(sandboxes(t, b)) == 0 })
}

func sandboxes(t *testing.T, b *harness.Berth) []*runtimeapi.PodSandbox {
	t.Helper()
	list, err := b.Runtime.ListPodSandbox(b.Ctx(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// slowPlugin is a CNI plugin that sleeps a minute before it does what ptp does.
const slowPlugin = `#!/bin/bash
input=$(cat)
echo "$CNI_COMMAND $CNI_CONTAINERID" >> %[1]s/calls
[ "$CNI_COMMAND" = ADD ] && sleep 60
printf '%%s' "$input" | sed 's/"type": *"slow"/"type":"ptp"/' | /usr/lib/cni/ptp
`

const slowNetwork = `{"cniVersion": "1.0.0", "name": "slow", "plugins": [{"type": "slow", "ipMasq": false,
 "ipam": {"type": "host-local", "dataDir": "%s/ipam", "ranges": [[{"subnet": "10.77.0.0/24"}]]}}]}`

func TestKubeletThatGivesUpGetsOneSandbox(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"bin/slow": fmt.Sprintf(slowPlugin, dir), "net.d/10-slow.conflist": fmt.Sprintf(slowNetwork, dir),
	} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := harness.Start(t, harness.Options{
		Args:   []string{"--network", "cni"},
		Config: fmt.Sprintf("[network]\nconf_dir = '%s/net.d'\nbin_dirs = ['%s/bin', '/usr/lib/cni']\n", dir, dir),
	})
	k := kubelet.Start(t, b, kubelet.Options{Config: "runtimeRequestTimeout: 10s"})
	k.Add("slow", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: slow, namespace: default}
spec:
  containers: [{name: c, image: "%s", imagePullPolicy: Never, command: [sleep, "10000"]}]
  terminationGracePeriodSeconds: 1
`, harness.Busybox))
	k.AwaitReady("slow")
	all := sandboxes(t, b)
	if len(all) != 1 || all[0].Metadata.Attempt != 0 {
		t.Errorf("sandboxes %v, want one of attempt 0", all)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(calls), "ADD"); n != 1 {
		t.Errorf("%d ADDs, want 1:\n%s", n, calls)
	}
	k.Remove("slow")
	k.Await("the pod to be gone", func() bool { return len(sandboxes(t, b)) == 0 })
}
