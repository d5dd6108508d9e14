//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/controlplane"
	"github.com/berthrun/berth/test/harness/kubelet"
)

// The pods of each class. "counts" writes numbers as long as it runs, and is probed by commands. "again" ends
// with code 3 whenever the test says so, and is started again. "once" ends with code 7, and is not.
const (
	countsScript = `trap 'exit 0' TERM; n=0; while :; do n=$((n+1)); echo $n; sleep 0.1; done`
	againScript  = `n=$(wc -l < /test/starts); echo start >> /test/starts; while [ ! -e /test/end$n ]; do sleep 0.1; done; exit 3`
	onceScript   = `n=0; while [ $n -lt 200 ]; do n=$((n+1)); echo $n; done; echo start >> /test/starts; while [ ! -e /test/end ]; do sleep 0.1; done; while [ $n -lt 400 ]; do n=$((n+1)); echo $n; done; exit 7`
)

// classPod is the manifest of a pod; its container sees a directory of the test at /test.
const classPod = `
metadata: {name: %[1]s, namespace: default}
spec:
  nodeName: %[2]s
  runtimeClassName: %[3]s
  restartPolicy: %[4]s
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 5
  volumes: [{name: test, hostPath: {path: %[5]s}}]
  containers:
  - name: c
    image: "%[6]s"
    imagePullPolicy: Never
    command: [/bin/sh, -c, %[7]q]
    volumeMounts: [{name: test, mountPath: /test}]
    resources: {requests: {cpu: 10m}, limits: {memory: 64Mi}}
    readinessProbe: {exec: {command: [/bin/true]}, periodSeconds: 1, timeoutSeconds: 20}
    livenessProbe: {exec: {command: [/bin/true]}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 5}
`

// TestKubeletRunsRuntimeClasses: pods of three RuntimeClasses (berth's own runtime, an OCI runtime, a shim) run
// side by side while kubelet, daemon, supervisor and keeper are killed. Nothing restarts but what ends, every
// exit code is true, every line is in the log once, and nothing is left.
func TestKubeletRunsRuntimeClasses(t *testing.T) {
	runc, shim := require.Binary(t, "runc"), require.Binary(t, "containerd-shim-runc-v2")
	b := harness.Start(t, harness.Options{Config: fmt.Sprintf("[handlers.builtin]\nkind = \"builtin\"\n[handlers.runc]\nkind = \"oci\"\npath = %q\n[handlers.shim]\nkind = \"shim\"\npath = %q\n", runc, shim)})
	plane := controlplane.Start(t, b)
	c := &classes{t: t, b: b, plane: plane, dir: filepath.Join(b.Dir, "pods")}
	c.post("/api/v1/namespaces/default/serviceaccounts", "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}")
	for _, handler := range classNames() {
		c.post("/apis/node.k8s.io/v1/runtimeclasses", fmt.Sprintf("{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: %s}, handler: %[1]s}", handler))
	}
	c.k = kubelet.Start(t, b, kubelet.Options{Kubeconfig: plane.KubeletConfig})
	plane.AwaitNode()
	var names []string
	for _, handler := range classNames() {
		c.run(handler, "counts", "Always", countsScript)
		c.run(handler, "again", "Always", againScript)
		c.run(handler, "once", "Never", onceScript)
		names = append(names, handler+"-counts", handler+"-again", handler+"-once")
	}
	c.k.AwaitReady(names...)
	handlers := map[string]int{}
	for _, sandbox := range sandboxes(t, b) {
		handlers[sandbox.RuntimeHandler]++
		if want, _, _ := strings.Cut(sandbox.Metadata.Name, "-"); sandbox.RuntimeHandler != want {
			t.Errorf("the handler of %s is %q", sandbox.Metadata.Name, sandbox.RuntimeHandler)
		}
	}
	if len(handlers) != 3 {
		t.Errorf("sandboxes by handler: %v", handlers)
	}

	for _, step := range []struct {
		what string
		do   func()
		// ends has the pods "again" end and start, with this number.
		ends int
	}{
		{"the supervisor's death", func() { harness.Kill(t, b.SupervisorPid()) }, 0},
		{"the daemon's death", func() { b.KillDaemon(); b.StartDaemon() }, -1},
		{"a restart of the daemon", func() { b.StopDaemon(); b.StartDaemon() }, -1},
		{"the kubelet's death", func() { c.k.Kill(); c.k.Launch() }, -1},
		{"the deaths of daemon and supervisor", func() { harness.Kill(t, b.SupervisorPid()); b.KillDaemon(); b.StartDaemon() }, 1},
		{"the keeper's death", func() { harness.Kill(t, b.KeeperPid()) }, -1},
	} {
		step.do()
		t.Logf("after %s", step.what)
		if step.ends >= 0 {
			c.endAgain(step.ends)
		}
		c.k.AwaitReady(names...)
	}
	c.endOnce()
	for _, handler := range classNames() {
		pods := c.k.Pods()
		for pod, restarts := range map[string]int32{"counts": 0, "again": 2, "once": 0} {
			name := handler + "-" + pod
			found := pods[name].Status.ContainerStatuses
			if len(found) != 1 || found[0].RestartCount != restarts {
				t.Errorf("%s: %+v, want %d restarts", name, found, restarts)
			}
		}
		c.wantStarts(handler+"-again", 3)
		c.wantStarts(handler+"-once", 1)
		c.wantNumbers(pods[handler+"-once"], 400)
	}
	for _, sandbox := range sandboxes(t, b) {
		if sandbox.Metadata.Attempt != 0 {
			t.Errorf("the sandbox of %s is attempt %d", sandbox.Metadata.Name, sandbox.Metadata.Attempt)
		}
	}
	pods := c.k.Pods()
	for _, handler := range classNames() {
		c.wantNumbers(pods[handler+"-counts"], -1)
	}
	for _, name := range names {
		c.remove(name)
	}
	c.k.Await("all pods to be gone", func() bool { return len(c.k.Pods()) == 0 && len(sandboxes(t, b)) == 0 })
	for _, pattern := range []string{"handlers/*/*", "supervisor/shims/*/*"} {
		if left, _ := filepath.Glob(filepath.Join(b.State, pattern)); len(left) > 0 {
			t.Errorf("state of the handlers is left: %v", left)
		}
	}
}

// classNames are the RuntimeClasses, and the handlers of the same names.
func classNames() []string { return []string{"builtin", "runc", "shim"} }

// classes are the pods of the RuntimeClasses.
type classes struct {
	t     *testing.T
	b     *harness.Berth
	k     *kubelet.Kubelet
	plane *controlplane.ControlPlane
	dir   string
}

func (c *classes) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), require.Patience(time.Minute))
	c.t.Cleanup(cancel)
	return ctx
}

// post creates an object, which is YAML, in a collection of the API.
func (c *classes) post(path, object string) {
	c.t.Helper()
	data, err := yaml.YAMLToJSON([]byte(object))
	if err == nil {
		err = c.plane.Core.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(data).Do(c.ctx()).Error()
	}
	if err != nil {
		c.t.Fatalf("%s: %v", path, err)
	}
}

// run creates a pod of a class.
func (c *classes) run(class, name, restart, script string) {
	c.t.Helper()
	name = class + "-" + name
	dir := filepath.Join(c.dir, name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		c.t.Fatal(err)
	}
	c.write(name, "starts", "")
	text := fmt.Sprintf(classPod, name, controlplane.Node, class, restart, dir, harness.Busybox, script)
	c.post("/api/v1/namespaces/default/pods", "apiVersion: v1\nkind: Pod"+text)
}

func (c *classes) write(pod, file, text string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, pod, file), []byte(text), 0o666); err != nil {
		c.t.Fatal(err)
	}
}

// endAgain ends the containers of the pods "again" that have the number, and waits for the next ones.
func (c *classes) endAgain(number int) {
	c.t.Helper()
	for _, class := range classNames() {
		c.write(class+"-again", fmt.Sprintf("end%d", number), "")
	}
	c.k.Await("the restarts", func() bool {
		pods := c.k.Pods()
		for _, class := range classNames() {
			found := pods[class+"-again"].Status.ContainerStatuses
			if len(found) != 1 || int(found[0].RestartCount) != number+1 || found[0].State.Running == nil {
				return false
			}
			if last := found[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 3 {
				c.t.Errorf("%s-again has ended with %+v, want code 3", class, last)
			}
		}
		return true
	})
}

// endOnce ends the pods "once".
func (c *classes) endOnce() {
	c.t.Helper()
	for _, class := range classNames() {
		c.write(class+"-once", "end", "")
	}
	c.k.Await("the ends", func() bool {
		pods := c.k.Pods()
		for _, class := range classNames() {
			found := pods[class+"-once"].Status
			if len(found.ContainerStatuses) != 1 || found.Phase != corev1.PodFailed {
				return false
			}
			if end := found.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 7 || end.Reason != "Error" {
				c.t.Errorf("%s-once has ended with %+v, want code 7", class, end)
			}
		}
		return true
	})
}

func (c *classes) wantStarts(pod string, want int) {
	c.t.Helper()
	data, err := os.ReadFile(filepath.Join(c.dir, pod, "starts"))
	if got := strings.Count(string(data), "\n"); err != nil || got != want {
		c.t.Errorf("%s has run %d times, want %d (%v)", pod, got, want, err)
	}
}

// wantNumbers checks that a log has the numbers from 1 on, each once and in order: up to last, or for -1 to
// whatever the pod has come to.
func (c *classes) wantNumbers(pod corev1.Pod, last int) {
	c.t.Helper()
	path := filepath.Join(c.k.Logs(), fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID), "c", "0.log")
	lines, err := harness.LogLines(path)
	if err != nil || len(lines) == 0 {
		c.t.Errorf("the log of %s: %d lines, %v", pod.Name, len(lines), err)
	}
	for i, line := range lines {
		if line != fmt.Sprint(i+1) {
			c.t.Errorf("the log of %s has %q as line %d", pod.Name, line, i+1)
			return
		}
	}
	if last >= 0 && len(lines) != last {
		c.t.Errorf("the log of %s has %d lines, want %d", pod.Name, len(lines), last)
	}
}

func (c *classes) remove(pod string) {
	c.t.Helper()
	err := c.plane.Core.Delete().Namespace("default").Resource("pods").Name(pod).Body(&metav1.DeleteOptions{}).Do(c.ctx()).Error()
	if err != nil {
		c.t.Error(err)
	}
}
