//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/test/docs/scripts"
)

const repository = "../.."

// shell is a shell beside the engine, in the repository. Programs of dirs come first.
func (h *clusterHost) shell(dirs ...string) *scripts.Shell {
	h.t.Helper()
	args := []string{"bash", "-c", scripts.Reader}
	if h.namespace != "" {
		args = append([]string{"nsenter", "--net=/run/netns/" + h.namespace}, args...)
	}
	cmd := exec.CommandContext(context.WithoutCancel(h.t.Context()), args[0], args[1:]...)
	cmd.Dir = repository
	path := strings.Join(append(dirs, filepath.Dir(h.berth), h.bin, os.Getenv("PATH")), ":")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+h.kubeconfig, "XDG_CACHE_HOME="+filepath.Join(filepath.Dir(h.kubeconfig), "cache"), "PATH="+path)
	return scripts.Open(h.t, cmd, 20*time.Minute)
}

// builtHere is a command that builds the node image from what a test has.
func (h *clusterHost) builtHere(line string) scripts.Row {
	return scripts.Row{
		Line: line, Run: "berth cluster build-image --kubernetes " + h.bin + " --rootfs out/systemd/root",
		Why: "Kubernetes and Debian are on this machine, and there is no Internet",
	}
}

// hasReady waits until that many nodes are Ready, and checks that there are no others.
func (h *clusterHost) hasReady(nodes int) {
	h.t.Helper()
	h.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout="+h.patience())
	if got := strings.Fields(h.kubectl("get", "nodes", "-o", "name")); len(got) != nodes {
		h.t.Errorf("nodes: %q, want %d", got, nodes)
	}
}

// TestFromKind types docs/migrate/kind.md, whose cluster is of examples/clusters/kind.yaml.
func TestFromKind(t *testing.T) {
	h := newClusterHost(t, engine{"docker", dockerOnly})
	installed := t.TempDir()
	page := scripts.Page(t, repository, "docs/migrate/kind.md", "", []scripts.Row{
		{Line: "make install", Run: "make -o build install DESTDIR=" + installed, Why: "the test must not change this machine; its programs are built"},
		{Line: "make install-kind", Run: "make install-kind DESTDIR=" + installed, Why: "the test must not change this machine"},
		h.builtHere("kind build node-image v1.36.3"),
		{Line: "berth cluster validate cluster.yaml", Run: "berth cluster validate examples/clusters/kind.yaml", Why: "the reader's file has another name"},
	})
	sh := h.shell(filepath.Join(installed, "usr/local/bin"))
	sh.Run("docker load -i " + filepath.Join(filepath.Dir(h.berth), "hello-image.tar") + " && docker tag berth.run/hello:demo app:1")

	page.Lines(sh, 6)
	if got := h.kubectl("config", "current-context"); got != "kind-app" {
		t.Errorf("the context is %q", got)
	}
	h.hasReady(2)
	h.apply(strings.ReplaceAll(workload1, "berth.run/hello:demo", "app:1"))
	h.kubectl("rollout", "status", "deployment/web", "--timeout="+h.patience())
	page.Block(sh)
	h.nothingLeft("app")
	page.All(sh)
}

// TestExamplesOfClusters creates the cluster of each example by the command in its comment, and
// deletes it. TestFromKind does so with examples/clusters/kind.yaml.
func TestExamplesOfClusters(t *testing.T) {
	h := newClusterHost(t, engine{"docker", dockerOnly})
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	h.run("docker", "load", "-i", filepath.Join(filepath.Dir(h.berth), "hello-image.tar"))
	h.run("docker", "tag", "berth.run/hello:demo", "localhost:5001/app:1")
	for _, c := range []struct {
		file, cluster, create string
		nodes                 int
		push                  string
	}{
		{file: "examples/clusters/ipv6.yaml", cluster: "six", create: "berth cluster create --config examples/clusters/ipv6.yaml --wait 2m", nodes: 1},
		{
			file: "examples/clusters/registry.yaml", cluster: "dev", create: "berth cluster create --config examples/clusters/registry.yaml --wait 2m", nodes: 3,
			push: "docker push localhost:5001/app:1",
		},
		{file: "examples/clusters/ha.yaml", cluster: "ha", create: "berth cluster create --config examples/clusters/ha.yaml --wait 5m", nodes: 5},
	} {
		t.Run(c.cluster, func(t *testing.T) {
			h := *h
			h.t = t
			// A machine that runs other tests is slower than that of a person.
			patient := scripts.Row{Line: c.create, Run: c.create[:strings.LastIndex(c.create, " ")+1] + h.patience(), Why: "this machine is slow"}
			script := scripts.Text(t, c.file, comment(t, c.file), []scripts.Row{patient})
			sh := h.shell()
			script.Lines(sh, 1)
			h.hasReady(c.nodes)
			if script.All(sh); c.push != "" {
				h.apply(strings.ReplaceAll(workload1, "berth.run/hello:demo", "localhost:5001/app:1"))
				h.kubectl("rollout", "status", "deployment/web", "--timeout="+h.patience())
			}
			if c.cluster == "six" {
				first := strings.Fields(h.kubectl("get", "nodes", "-o", `jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}`))
				ofFamilies(t, "64", first)
			}
			sh.Run("berth cluster delete " + c.cluster)
			if c.push != "" {
				sh.Run("berth cluster registry delete")
			}
			h.nothingLeft(c.cluster)
		})
	}
}

// TestClusterTutorial types docs/tutorials/cluster.md.
func TestClusterTutorial(t *testing.T) {
	const (
		name   = "docs/tutorials/cluster.md"
		create = "berth cluster create --config dev.yaml --wait 2m"
		doctor = "berth cluster doctor dev"
	)
	h := newClusterHost(t, engine{"docker", dockerOnly})
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	dir := t.TempDir()
	file := filepath.Join(dir, "dev.yaml")
	if err := os.WriteFile(file, []byte(scripts.Block(t, repository, name, "1. The file", "yaml")), 0o600); err != nil {
		t.Fatal(err)
	}
	bin, err := filepath.Abs(filepath.Dir(h.berth))
	if err != nil {
		t.Fatal(err)
	}
	sh := h.shell()
	sh.Run("cd " + dir + " && ln -s " + bin + " bin")

	page := scripts.Page(t, repository, name, "", []scripts.Row{
		{Line: create, Run: strings.TrimSuffix(create, "2m") + h.patience(), Why: "a machine that runs other tests is slow"},
		{Line: "curl --retry 5 --retry-all-errors http://localhost:8080/", Prints: "hello from berth, pod app-"},
		{Line: "berth cluster apply -f dev.yaml", Prints: `\[y/N\] `},
		{Line: doctor, Run: doctor + "; echo status $?", Why: "its exit status is 1 if it has found a problem"},
	})
	page.Sections(sh, "1. The file")
	h.hasReady(3)
	page.Sections(sh, "2. Push and run an image")
	sh.Run("sed -i 's/count: 2/count: 3/' dev.yaml") // as the page says
	page.Sections(sh, "3. Change the cluster")
	h.hasReady(4)
	out := page.Block(sh)
	broken, well := out[1].Text, out[len(out)-1].Text
	if !strings.Contains(broken, "kubelet.service") || !strings.Contains(broken, "status 1\n") || !strings.Contains(well, "status 0\n") {
		t.Errorf("with a kubelet that does not run:\n%s\nand later:\n%s", broken, well)
	}
	page.All(sh)
	h.nothingLeft("dev")
}

// comment returns the commands in the comment of an example.
func comment(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, file))
	if err != nil {
		t.Fatal(err)
	}
	var commands strings.Builder
	for line := range strings.Lines(string(data)) {
		if command, ok := strings.CutPrefix(line, "#   "); ok {
			commands.WriteString(command)
		}
	}
	return commands.String()
}
