//go:build e2e

package migrate

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/docs/scripts"
	"github.com/berthrun/berth/test/systemd"
)

const (
	criDockerdSocket = "unix:///run/cri-dockerd.sock"
	formerImage      = "berth.run/hello:demo"
	// webHash is a kubelet's hash of the name and the image of formerPod's container. A kubelet with
	// another one restarts the container.
	webHash = "e5c277d5"
)

// formerPod is a static pod. Its uid is also in the labels of its containers, which exist before the
// kubelet of the test.
const formerPod = `apiVersion: v1
kind: Pod
metadata: {name: hello, namespace: default, uid: 7c1e4d3a}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - {name: web, image: "berth.run/hello:demo", imagePullPolicy: IfNotPresent, command: [serve, --listen, ":8081"]}
`

// laterPod is a static pod that nobody has run yet.
const laterPod = `apiVersion: v1
kind: Pod
metadata: {name: later, namespace: default}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - {name: web, image: "berth.run/hello:demo", imagePullPolicy: IfNotPresent, command: [serve, --listen, ":8082"]}
`

// dockerDaemon is a docker as a node of cri-dockerd has it, with the OCI runtime of this host.
const dockerDaemon = `{"live-restore": true, "exec-opts": ["native.cgroupdriver=systemd"], "log-driver": "json-file",
 "runtimes": {"fit": {"path": "/opt/runc-fit"}}, "default-runtime": "fit"}
`

// criDockerd stands for cri-dockerd, which no package source here has; the real one is in
// TestAdoptionFromCRIDockerd of test/integration.
const criDockerd = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"

// bootDocker boots a node of cri-dockerd with a running pod, and returns the ids of its containers.
func bootDocker(t *testing.T) (n node, ids string) {
	t.Helper()
	n = boot(t, nil)
	n.DockerRuntime()
	n.Write("/etc/docker/daemon.json", dockerDaemon)
	n.install("docker.io", "containerd", "runc")
	n.Run("docker", "load", "-i", "/opt/hello-image.tar")
	n.Write("/etc/systemd/system/cri-docker.service", criDockerd)
	n.Write("/etc/systemd/system/cri-docker.socket", "[Socket]\nListenStream=/run/cri-dockerd.sock\n[Install]\nWantedBy=sockets.target\n")
	for path, text := range kubeletFiles(criDockerdSocket) {
		n.Write(path, text)
	}
	n.Write("/etc/kubernetes/manifests/hello.yaml", formerPod)
	n.Run("systemctl", "daemon-reload")
	n.Run("systemctl", "enable", "-q", "--now", "cri-docker.socket", "cri-docker.service")
	n.runFormerPod()
	return n, n.formerIDs()
}

// runFormerPod makes the containers of formerPod as cri-dockerd does.
func (n node) runFormerPod() {
	n.t.Helper()
	labels := func(more ...string) (flags []string) {
		for _, label := range append(more, "io.kubernetes.pod.name=hello-node", "io.kubernetes.pod.namespace=default", "io.kubernetes.pod.uid=7c1e4d3a") {
			flags = append(flags, "--label", label)
		}
		return flags
	}
	run := func(name string, flags []string, command ...string) string {
		args := append([]string{"docker", "run", "-d", "--name", "k8s_" + name + "_hello-node_default_7c1e4d3a_0", "--cgroup-parent", "kubepods-besteffort-pod7c1e4d3a.slice"}, flags...)
		return strings.TrimSpace(n.Run(append(append(args, formerImage), command...)...))
	}
	sandbox := run("POD", append(labels("io.kubernetes.docker.type=podsandbox", "io.kubernetes.container.name=POD",
		"annotation.kubernetes.io/config.source=file", "annotation.kubernetes.io/config.seen=2026-01-01T00:00:00Z"), "--network", "host", "--ipc", "shareable"), "sh", "-c", "while true; do sleep 1000; done")
	log := "/var/log/pods/default_hello-node_7c1e4d3a/web/0.log"
	id := run("web", append(labels("io.kubernetes.docker.type=container", "io.kubernetes.container.name=web", "io.kubernetes.sandbox.id="+sandbox,
		"io.kubernetes.container.logpath="+log, "annotation.io.kubernetes.container.restartCount=0", "annotation.io.kubernetes.container.hash="+webHash,
		"annotation.io.kubernetes.container.terminationMessagePath=/dev/termination-log", "annotation.io.kubernetes.container.terminationMessagePolicy=File",
		"annotation.io.kubernetes.pod.terminationGracePeriod=1"), "--network", "container:"+sandbox, "--ipc", "container:"+sandbox), "serve", "--listen", ":8081")
	n.Run("mkdir", "-p", filepath.Dir(log))
	n.Run("ln", "-s", "/var/lib/docker/containers/"+id+"/"+id+"-json.log", log)
}

// formerIDs are the containers of formerPod that run.
func (n node) formerIDs() string {
	n.t.Helper()
	return n.Run("sh", "-c", "docker ps --no-trunc --format '{{.ID}} {{.Names}}' | grep _hello-node_ | sort")
}

// ranOn checks that the kubelet works with berth, and that it did not restart the former pod.
func (n node) ranOn(ids string) {
	n.t.Helper()
	n.Write("/etc/kubernetes/manifests/later.yaml", laterPod)
	n.awaitPod("later-node", berthSocket)
	n.awaitPod("hello-node", berthSocket)
	if now := n.formerIDs(); now != ids {
		n.t.Errorf("the pod's containers were\n%s\nand are\n%s", ids, now)
	}
}

// TestLiveSwitchFromCRIDockerd types the commands by which a running node changes by hand, and those
// that remove berth again.
func TestLiveSwitchFromCRIDockerd(t *testing.T) {
	n, ids := bootDocker(t)
	page := scripts.Page(t, repository, "docs/docker.md", "Pods of dockershim and cri-dockerd", []scripts.Row{
		{Line: "make install", Why: "the machine has what it installs"},
		{
			Line: "journalctl -u berth | grep -E 'cannot adopt|leaving|have one name'",
			Run:  "! journalctl -u berth | grep -E 'cannot adopt|leaving|have one name'", Why: "grep fails if it prints nothing, as it must",
		},
		{
			Line: "sed -i 's#KUBELET_KUBEADM_ARGS=\"#&--container-runtime=remote --container-runtime-endpoint=unix:///run/berth/berth.sock #' \\\n    /var/lib/kubelet/kubeadm-flags.env",
			Why:  "it is for a kubelet 1.23 with dockershim, and its flag is gone since 1.27",
		},
	})
	out := page.All(n.shell)
	says(t, out.Of(t, "berth config check"), "no fault")
	says(t, out.Of(t, "berth pod ls -a"), "hello-node")
	n.ranOn(ids)
	n.only("berth.service", "cri-docker.service")
	n.removed()
}

// removed types the commands that remove berth, for the way back to the former runtime, and checks
// that nothing of berth is left.
func (n node) removed() {
	n.t.Helper()
	const why = "the block is for a berth that cannot start, and this one does"
	var instead []scripts.Row
	for _, line := range []string{
		"I=default B=berth0 T=berth", "docker ps -aq --filter label=run.berth.instance=$I | xargs -r docker rm -f",
		"docker ps -a --filter label=io.kubernetes.docker.type", "ip link del $B;", "nft delete table inet $T;", "nft delete table bridge $T",
		"umount -q /run/netns/berth-$I-*;", "rm -f /run/netns/berth-$I-*", "umount -q /var/lib/berth-pods/*/volumes/*;", "rm -rf /var/lib/berth-pods",
		"umount -q /run/berth;", "rm -rf /run/berth /var/lib/berth", `find /sys/fs/cgroup -depth -type d -path "*/berth-$I*" -exec rmdir {} +`,
	} {
		instead = append(instead, scripts.Row{Line: line, Why: why})
	}
	n.shell.Run("systemctl stop kubelet")
	scripts.Page(n.t, repository, "docs/docker.md", "Remove berth from a host", instead).All(n.shell)
	if left := n.Run("sh", "-c", "docker ps -aq --filter label=io.kubernetes.docker.type; ls -d /run/berth /var/lib/berth /var/lib/docker/berth-adopter 2>&- || true"); left != "" {
		n.t.Errorf("left: %s", left)
	}
	n.Run("systemctl", "enable", "-q", "--now", "cri-docker.socket", "cri-docker.service")
}

// TestFromCRIDockerd types docs/migrate/dockershim.md: with the page's node file pods run on, and
// later they run without docker.
func TestFromCRIDockerd(t *testing.T) {
	n, ids := bootDocker(t)
	file := scripts.Block(t, repository, "docs/migrate/dockershim.md", "A live switch", "yaml")
	const runtime = "{name: docker, socket: /run/berth/berth.sock}"
	if !strings.Contains(file, runtime) {
		t.Fatalf("the page's node file does not have %s:\n%s", runtime, file)
	}
	// What this host and a machine without a registry need.
	file = strings.Replace(file, runtime, "{name: docker, socket: /run/berth/berth.sock, "+n.DockerRuntime()+"}", 1) +
		"kernel: {defaultSysctls: false}\nimages:\n- {source: /opt/hello-image.tar, digest: \"sha256:@HELLO@\", names: [\"berth.run/hello:demo\"]}\n"
	n.Describe(file)
	n.Run("systemctl", "enable", "-q", "--now", "kubelet.service")

	page := scripts.Page(t, repository, "docs/migrate/dockershim.md", "", nil)
	out := page.Block(n.shell)
	says(t, out.Of(t, `docker info -f '{{.LiveRestoreEnabled}} {{.CgroupDriver}}'`), "true systemd")
	if plan := out.Of(t, "berth node plan"); strings.Contains(plan, "is stopped") {
		t.Errorf("the plan stops pods:\n%s", plan)
	}
	n.ranOn(ids)
	n.only("berth.service", "cri-docker.service")

	n.Run("sed", "-i", "s/^runtime: .*/runtime: {name: berth}/", systemd.NodeFile)
	page.All(n.shell)
	n.awaitPod("hello-node", berthSocket)
	n.only("berth-supervisor.service", "docker.service")
}
