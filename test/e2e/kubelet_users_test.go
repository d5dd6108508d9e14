//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/kubelet"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// usersPod is a pod in a user namespace with volumes of all kinds that a kubelet maps itself. It is
// ready if its root sees the right owners. (A kubelet without an API server assumes that no runtime
// supports recursive read-only mounts.)
const usersPod = `apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default, annotations: {note: "seen"}}
spec:
  hostUsers: false
  hostNetwork: %[2]v
  shareProcessNamespace: %[3]v
  initContainers:
  - {name: init, image: "%[4]s", imagePullPolicy: Never, command: [/bin/sh, -c, "echo made > /data/file"], volumeMounts: [{name: data, mountPath: /data}]}
  containers:
  - name: c
    image: "%[4]s"
    imagePullPolicy: Never
    command: [/bin/sh, -c, "echo over > /dev/termination-log; trap 'exit 0' TERM; while :; do sleep 1; done"]
    securityContext: {procMount: Unmasked}
    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: ram, mountPath: /ram}
    - {name: info, mountPath: /info}
    - {name: host, mountPath: /host, readOnly: true, recursiveReadOnly: IfPossible}
    - {name: tools, mountPath: /tools, subPath: bin}
    readinessProbe:
      periodSeconds: 1
      timeoutSeconds: 10
      exec:
        command: [/bin/sh, -c, "test $(stat -c %%u /data/file) = 0 && touch /data/mine /ram/mine && grep -q seen /info/note && test $(stat -c %%u /host/owned) = 0 && ! touch /host/x 2>/dev/null && test -x /tools/busybox && ! touch /tools/x 2>/dev/null && test $(stat -c %%u /etc/hosts) = 0"]
  volumes:
  - {name: data, emptyDir: {}}
  - {name: ram, emptyDir: {medium: Memory}}
  - {name: info, downwardAPI: {items: [{path: note, fieldRef: {fieldPath: "metadata.annotations['note']"}}]}}
  - {name: host, hostPath: {path: %[5]s}}
  - {name: tools, image: {reference: "%[4]s", pullPolicy: Never}}
  terminationGracePeriodSeconds: 2
`

// A kubelet gives pods user namespaces if Status reports that they work, and maps their volumes.
func TestKubeletRunsPodsInUserNamespaces(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	k := kubelet.Start(t, b, kubelet.Options{Config: "featureGates: {UserNamespacesHostNetworkSupport: true}"})
	shared := t.TempDir()
	if err := os.WriteFile(filepath.Join(shared, "owned"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	names := []string{"users", "users-host", "users-shared"}
	for _, name := range names {
		k.Add(name, fmt.Sprintf(usersPod, name, name == "users-host", name == "users-shared", harness.Busybox, shared))
	}
	k.AwaitReady(names...)
	harness.Kill(t, b.SupervisorPid())
	b.KillDaemon()
	b.StartDaemon()
	k.AwaitReady(names...)
	maps := map[string]bool{}
	for _, c := range containers(t, b) {
		if c.Metadata.Name == "c" {
			maps[b.ExecOut(c.Id, "cat /proc/self/uid_map")] = true
		}
	}
	if len(maps) != len(names) {
		t.Errorf("pods share user namespaces: %v", maps)
	}
	for line := range maps {
		if fields := strings.Fields(line); len(fields) != 3 || fields[0] != "0" || fields[1] == "0" || fields[2] != "65536" {
			t.Errorf("a pod has the mapping %q", line)
		}
	}
	for name, count := range k.Restarts() {
		if count != 0 {
			t.Errorf("%s was restarted %d times", name, count)
		}
	}
	for _, name := range names {
		k.Remove(name)
	}
	k.Await("all pods to be gone", func() bool { return len(k.Pods()) == 0 && len(sandboxes(t, b)) == 0 })
}

func containers(t *testing.T, b *harness.Berth) []*runtimeapi.Container {
	t.Helper()
	list, err := b.Runtime.ListContainers(b.Ctx(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return list.Containers
}
