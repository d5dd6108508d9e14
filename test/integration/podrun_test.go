//go:build integration

package integration

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// command is `berth ARGS...` in the instance's host namespace, where streaming and probes work,
// with volumes and logs in the instance's directory.
func command(b *harness.Berth, args ...string) *exec.Cmd {
	if args[0] == "pod" {
		args = append([]string{"pod", "--volume-dir=" + filepath.Join(b.Dir, "vols"), "--log-dir=" + filepath.Join(b.Dir, "podlogs")}, args[1:]...)
	}
	cmd := b.InHost(filepath.Join(b.Bin, "berth"), args...)
	cmd.Env = append(os.Environ(), "BERTH_ENDPOINT=unix://"+b.Socket)
	return cmd
}

// run runs it and returns its output and its exit code.
func run(t *testing.T, b *harness.Berth, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := command(b, args...)
	var out, errOut strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// podFile writes a pod's YAML; IMAGE stands for the test image.
func podFile(t *testing.T, b *harness.Berth, name, yaml string) string {
	t.Helper()
	file := filepath.Join(b.Dir, name+".yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(yaml, "IMAGE", harness.Busybox)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// wantNothing fails the test if a removed pod has left something.
func wantNothing(t *testing.T, b *harness.Berth) {
	t.Helper()
	for _, dir := range []string{"vols", "podlogs"} {
		entries, err := os.ReadDir(filepath.Join(b.Dir, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, entry := range entries {
			t.Errorf("%s/%s is left", dir, entry.Name())
		}
	}
	if out, _, _ := run(t, b, "", "pod", "ls", "-a", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("pods are left: %s", out)
	}
}

// kept is a `berth pod run` in the background.
type kept struct {
	*exec.Cmd
	out *lines
}

type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func keep(t *testing.T, b *harness.Berth, args ...string) *kept {
	t.Helper()
	k := &kept{command(b, args...), &lines{}}
	k.Stdout, k.Stderr = k.out, k.out
	if err := k.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if k.ProcessState == nil {
			_ = k.Process.Kill()
			_ = k.Wait()
		}
		if t.Failed() {
			t.Logf("the keeper printed:\n%s", k.out)
		}
	})
	return k
}

func (k *kept) says(text string) func() bool {
	return func() bool { return strings.Contains(k.out.String(), text) }
}

func (k *kept) end(t *testing.T) int {
	t.Helper()
	err := k.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return k.ProcessState.ExitCode()
}

const volumesPod = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue, "greeting.txt": "hello"}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {token: hunter2}
---
apiVersion: v1
kind: Pod
metadata: {name: volumes}
spec:
  restartPolicy: Never
  securityContext: {runAsUser: 1000, runAsGroup: 1001, fsGroup: 1002}
  volumes:
    - {name: settings, configMap: {name: settings}}
    - {name: keys, secret: {secretName: keys, defaultMode: 0o400}}
    - {name: shared, emptyDir: {}}
    - {name: ram, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
    - {name: host, hostPath: {path: HOSTDIR, type: DirectoryOrCreate}}
  initContainers:
    - name: init
      image: IMAGE
      command: [sh, -c, "echo $(COLOR) > /shared/color"]
      env: [{name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}]
      volumeMounts: [{name: shared, mountPath: /shared}]
  containers:
    - name: check
      image: IMAGE
      command: [sh, -c]
      args:
        - |
          cat /shared/color; cat /etc/settings/greeting.txt; echo; cat /keys/token; echo; cat /one/file; echo
          { echo x > /etc/settings/new; } 2>/dev/null && echo configmap-writable
          echo x > /ram/file && echo ram-writable
          dd if=/dev/zero of=/ram/big bs=1M count=2 2>/dev/null || echo ram-limited
          ls /host
          id -u; id -g; hostname
          exit 7
      volumeMounts:
        - {name: settings, mountPath: /etc/settings}
        - {name: settings, mountPath: /one/file, subPath: color}
        - {name: keys, mountPath: /keys}
        - {name: shared, mountPath: /shared}
        - {name: ram, mountPath: /ram}
        - {name: host, mountPath: /host, readOnly: true}
`

// wantVolumes checks the output of volumesPod.
func wantVolumes(t *testing.T, out string) {
	t.Helper()
	lines := []string{"blue", "hello", "hunter2", "blue", "ram-writable", "ram-limited", "1000", "1001", "volumes"}
	for i := range lines {
		lines[i] = "check | " + lines[i]
	}
	want(t, "the pod's output", strings.TrimSpace(out), strings.Join(lines, "\n"))
}

func TestPodRunWithVolumes(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	host := filepath.Join(b.Dir, "hostdir")
	file := podFile(t, b, "volumes", strings.ReplaceAll(volumesPod, "HOSTDIR", host))
	out, errOut, code := run(t, b, "", "pod", "run", "-f", file)
	if code != 7 {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	wantVolumes(t, out)
	if entries, err := os.ReadDir(filepath.Join(b.Dir, "vols")); err != nil || len(entries) != 0 {
		t.Errorf("volumes of an ended pod are left: %v, %v", entries, err)
	}
	if out, _, _ := run(t, b, "", "pod", "logs", "volumes", "-c", "check", "--tail", "1"); out != "volumes\n" {
		t.Errorf("the last line is %q", out)
	}
	if _, errOut, code := run(t, b, "", "pod", "rm", "volumes"); code != 0 {
		t.Errorf("rm: %s", errOut)
	}
	wantNothing(t, b)
	if _, err := os.Stat(host); err != nil {
		t.Errorf("the host's own directory: %v", err)
	}
}

const probedPod = `
apiVersion: v1
kind: Pod
metadata: {name: probed}
spec:
  terminationGracePeriodSeconds: 5
  initContainers:
    - name: side
      image: IMAGE
      restartPolicy: Always
      command: [sh, -c, "trap 'echo side stops; exit 0' TERM; touch /tmp/up; while true; do sleep 0.1; done"]
      startupProbe: {exec: {command: [test, -e, /tmp/up]}, periodSeconds: 1, timeoutSeconds: 10}
  containers:
    - name: web
      image: IMAGE
      command: [sh, -c, "trap 'echo web stops; exit 0' TERM; echo ok > /tmp/index.html; httpd -p 8080 -h /tmp; while true; do sleep 0.1; done"]
      ports: [{name: http, containerPort: 8080, hostPort: 18080}]
      readinessProbe: {httpGet: {path: /index.html, port: http}, periodSeconds: 1}
      livenessProbe: {tcpSocket: {port: http}, periodSeconds: 1}
    - name: flaky
      image: IMAGE
      command: [sh, -c, "trap 'exit 0' TERM; touch /tmp/alive; while true; do sleep 0.1; done"]
      livenessProbe: {exec: {command: [test, -e, /tmp/alive]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}
`

func TestPodRunKeepsAPod(t *testing.T) {
	require.Binary(t, "busybox")
	b := harness.Start(t, harness.Options{})
	k := keep(t, b, "pod", "run", "--rm", "-f", podFile(t, b, "probed", probedPod))
	b.Await("readiness", k.says("pod default/probed is ready"))

	// The command survives the daemon and continues.
	b.KillDaemon()
	b.StartDaemon()
	if _, errOut, code := run(t, b, "", "pod", "exec", "probed", "-c", "flaky", "--", "rm", "/tmp/alive"); code != 0 {
		t.Fatalf("exec: %s", errOut)
	}
	b.Await("failure of the probe", k.says("flaky fails its liveness probe"))
	b.Await("restart", k.says("flaky ended (exit code 0), restart in 10s"))

	// A forwarded port reaches the pod, from its port on the host and through the command.
	forward := keep(t, b, "pod", "port-forward", "probed", "19090:8080")
	b.Await("forwarding", forward.says("Forwarding from 127.0.0.1:19090"))
	for _, port := range []string{"18080", "19090"} {
		// (wget of a static busybox does not run everywhere.)
		ask := b.InHost("busybox", "nc", "-w", "10", "127.0.0.1", port)
		ask.Stdin = strings.NewReader("GET /index.html HTTP/1.0\r\n\r\n")
		out, err := ask.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "HTTP/1.") || !strings.HasSuffix(string(out), "\r\n\r\nok\n") {
			t.Errorf("port %s: %q, %v", port, out, err)
		}
	}

	if err := k.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := k.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	out := k.out.String()
	if web, side := strings.Index(out, "web | web stops"), strings.Index(out, "side | side stops"); web < 0 || side < web {
		t.Errorf("the sidecar is not stopped last:\n%s", out)
	}
	wantNothing(t, b)
}

func TestPodRunInteractive(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	file := podFile(t, b, "shell", `
apiVersion: v1
kind: Pod
metadata: {name: shell}
spec:
  restartPolicy: Never
  containers: [{name: sh, image: IMAGE, command: [sh]}]
`)
	out, errOut, code := run(t, b, "echo from $HOSTNAME; exit 9\n", "pod", "run", "--rm", "-i", "-f", file)
	if code != 9 || out != "from shell\n" {
		t.Errorf("exit code %d, %q, %s", code, out, errOut)
	}
	wantNothing(t, b)
}

func TestPodExecAndAttach(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	file := podFile(t, b, "talk", `
apiVersion: v1
kind: Pod
metadata: {name: talk}
spec:
  restartPolicy: Never
  containers: [{name: a, image: IMAGE, stdin: true, command: [sh, -c, "while read x; do echo got $x; done; sleep 1000"]}]
`)
	if out, errOut, code := run(t, b, "", "pod", "run", "-d", "-f", file); code != 0 || len(strings.TrimSpace(out)) != 64 {
		t.Fatalf("run -d: %q %s", out, errOut)
	}
	out, errOut, code := run(t, b, strings.Repeat("x", 1<<20), "pod", "exec", "-i", "talk", "--", "sh", "-c", "wc -c; echo complaint >&2; exit 5")
	if code != 5 || strings.TrimSpace(out) != "1048576" || errOut != "complaint\n" {
		t.Errorf("exec: %d %q %q", code, out, errOut)
	}
	// A client that disconnects ends its exec, but not the container that it was attached to.
	sleeper := keep(t, b, "pod", "exec", "talk", "--", "sh", "-c", "echo started; "+ownSleep(4714))
	b.Await("exec", sleeper.says("started"))
	attached := command(b, "pod", "attach", "-i", "talk")
	words, err := attached.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	heard := &lines{}
	attached.Stdout = heard
	if err := attached.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(words, "one\n"); err != nil {
		t.Fatal(err)
	}
	b.Await("an answer", func() bool { return heard.String() == "got one\n" })
	for _, client := range []*exec.Cmd{sleeper.Cmd, attached} {
		if err := client.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = client.Wait()
	}
	b.Await("the end of the exec", func() bool {
		return len(harness.Processes(func(_ int, cmdline string) bool { return strings.Contains(cmdline, ownSleep(4714)) })) == 0
	})
	if out, _, _ := run(t, b, "", "pod", "ls"); !strings.Contains(out, "default/talk") || !strings.Contains(out, "1/1") {
		t.Errorf("pods:\n%s", out)
	}
	if _, errOut, code := run(t, b, "", "pod", "rm", "--force", "talk"); code != 0 {
		t.Errorf("rm: %s", errOut)
	}
	wantNothing(t, b)
}

const kubeletPod = `
apiVersion: v1
kind: Pod
metadata: {name: rich, labels: {tier: web}}
spec:
  restartPolicy: Never
  subdomain: lab
  hostAliases: [{ip: 192.0.2.7, hostnames: [alias.example]}]
  securityContext: {fsGroup: 1002, supplementalGroups: [4000]}
  resources: {limits: {memory: 256Mi, cpu: "1"}}
  tolerations: [{operator: Exists}]
  volumes:
    - name: all
      projected:
        sources:
          - downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
          - downwardAPI: {items: [{path: sub/mem, resourceFieldRef: {containerName: main, resource: limits.memory, divisor: 1Mi}}]}
    - {name: claim, persistentVolumeClaim: {claimName: data}}
    - {name: scratch, emptyDir: {}}
    - {name: sticky, emptyDir: {mode: 01777}}
  initContainers:
    - name: write
      image: IMAGE
      command: [sh, -c, "echo \"WORD='from a file'\" > /scratch/env; ln -s /etc /scratch/out"]
      volumeMounts: [{name: scratch, mountPath: /scratch}]
    - name: side
      image: IMAGE
      restartPolicy: Always
      command: [sh, -c, "trap 'echo side stops; exit 0' TERM; while true; do sleep 0.1; done"]
      lifecycle: {postStart: {exec: {command: [touch, /scratch/started]}}}
      volumeMounts: [{name: scratch, mountPath: /scratch}]
  containers:
    - name: main
      image: IMAGE
      resources: {limits: {memory: 64Mi}}
      env:
        - {name: WORD, valueFrom: {fileKeyRef: {volumeName: scratch, path: env, key: WORD}}}
        - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
      command: [sh, -c]
      args:
        - |
          echo "$WORD"; cat /all/labels; echo; cat /all/sub/mem; echo; ls /scratch/started
          grep -c "^$IP.*rich.lab.default.svc.cluster.local" /etc/hosts; grep -c alias.example /etc/hosts
          echo kept >> /claim/file; cat /claim/file; stat -c %a /sticky; id -G
          echo x > /sub/y; echo "last words" > /dev/termination-log; exit 3
      volumeMounts:
        - {name: all, mountPath: /all}
        - {name: claim, mountPath: /claim}
        - {name: scratch, mountPath: /scratch}
        - {name: scratch, mountPath: /sub, subPathExpr: "deep/$(POD)"}
        - {name: sticky, mountPath: /sticky}
`

// TestPodRunAsAKubelet runs less common examples of Kubernetes' documentation twice. The second run
// finds the files of a claim.
func TestPodRunAsAKubelet(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	file := podFile(t, b, "rich", kubeletPod)
	claims := filepath.Join(b.Dir, "claims")
	for round, claim := range []string{"kept", "kept\nmain | kept"} {
		out, errOut, code := run(t, b, "", "pod", "--claim-dir", claims, "run", "--rm", "-f", file)
		if code != 3 {
			t.Errorf("round %d: exit code %d, %s", round, code, errOut)
		}
		var main []string
		for _, line := range strings.Split(out, "\n") {
			if strings.HasPrefix(line, "main | ") {
				main = append(main, line)
			}
		}
		wanted := "main | from a file\nmain | tier=\"web\"\nmain | 64\nmain | /scratch/started\nmain | 1\nmain | 1\nmain | " + claim +
			"\nmain | 3777\nmain | 0 1002 4000"
		want(t, "the pod's output", strings.Join(main, "\n"), wanted)
		for _, say := range []string{"main ended (exit code 3: last words)", "spec.tolerations (line "} {
			if !strings.Contains(errOut, say) {
				t.Errorf("%q is not said: %s", say, errOut)
			}
		}
		wantNothing(t, b)
	}
}

const workloads = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: a
          image: IMAGE
          command: [sh, -c, "trap 'exit 0' TERM; echo $(hostname) > /tmp/index.html; httpd -p 8080 -h /tmp; while true; do sleep 0.1; done"]
          readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}
---
apiVersion: batch/v1
kind: Job
metadata: {name: ask}
spec:
  completions: 2
  parallelism: 1
  completionMode: Indexed
  template:
    spec:
      restartPolicy: OnFailure
      containers:
        - name: a
          image: IMAGE
          command: [sh, -c, "until grep -q web-1.web.default.svc /etc/hosts; do sleep 0.1; done; printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n' | nc -w 10 web-$JOB_COMPLETION_INDEX.web 8080 | tail -n 1"]
`

// TestPodRunWorkloads: a StatefulSet's pods have their names, and a Job's pods resolve them.
func TestPodRunWorkloads(t *testing.T) {
	require.Binary(t, "busybox")
	b := harness.Start(t, harness.Options{})
	k := keep(t, b, "pod", "run", "--rm", "-f", podFile(t, b, "workloads", workloads))
	b.Await("answer of web-0", k.says("ask-0/a | web-0"))
	b.Await("answer of web-1", k.says("ask-1/a | web-1"))
	b.Await("readiness of web-1", k.says("pod default/web-1 is ready"))
	if err := k.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := k.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	out := k.out.String()
	if first, second := strings.Index(out, "pod default/web-0 is ready"), strings.Index(out, "pod default/web-1 is ready"); first < 0 || second < first {
		t.Errorf("the pods are not ready in order:\n%s", out)
	}
	wantNothing(t, b)
}
