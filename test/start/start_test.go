//go:build integration && e2e

package start

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/docs/scripts"
	"github.com/berthrun/berth/test/systemd"
)

// patience bounds one command: the longest one builds berth.
const patience = 10 * time.Minute

// reader is a person who follows the pages on a machine.
type reader struct {
	*systemd.Machine
	t *testing.T
	// sh is the first terminal.
	sh *scripts.Shell
}

// TestFiveMinutes follows the three pages on a fresh Debian 13 and a fresh Debian 12, line by line: from nothing to a
// pod, to a cluster, to a node, and to a second node.
func TestFiveMinutes(t *testing.T) {
	shared := t.TempDir()
	bundle(t, filepath.Join(shared, "berth.bundle"))
	page := func(name string) *scripts.Script {
		return scripts.Page(t, repository, file(name), "", table(name))
	}
	pod, cluster, node := page("pod"), page("cluster"), page("node")

	one := fresh(t, "debian-13", "other", shared)
	asksAsTheTableHas(t, "pod", pod.Follow(one.sh, one.terminal))
	asksAsTheTableHas(t, "cluster", cluster.Follow(one.sh, one.terminal))

	two := fresh(t, "debian-12", "plane", shared)
	systemd.Link(two.Machine, "192.0.2.10/24", one.Machine, "192.0.2.11/24")
	two.Run("ip", "route", "add", "default", "via", "192.0.2.11")
	one.Run("ip", "route", "add", "default", "via", "192.0.2.10")
	pod.Sections(two.sh, "Build and install")
	out := node.Sections(two.sh, "Before you begin", "Write the node file", "Look, then apply", "Create a cluster")
	out = append(out, node.Block(two.sh)...)

	out = append(out, node.Sections(one.sh, "Before you begin", "Write the node file")...)
	one.sh.Run("sed -i 's#10.244.0.0/24#10.244.1.0/24#' /etc/berth/node.yaml") // as the page says
	out = append(out, node.Sections(one.sh, "Look, then apply")...)
	copied, err := os.ReadFile(filepath.Join(two.Root, "root/berth/join.txt"))
	if err != nil {
		t.Fatal(err)
	}
	one.Write("/root/berth/join.txt", string(copied))
	out = append(out, node.Block(one.sh)...)
	two.sh.Run("kubectl wait --for=create node/other --timeout 2m && kubectl wait --for=condition=Ready node/other --timeout 2m")
	asksAsTheTableHas(t, "node", append(out, node.All(two.sh)...))
}

// asksAsTheTableHas checks that no command asks, except those whose rows have the question.
func asksAsTheTableHas(t *testing.T, page string, out scripts.Outputs) {
	t.Helper()
	asks := map[string]bool{}
	for _, row := range table(page) {
		asks[row.Line] = strings.Contains(row.Prints, `\[y/N\]`)
	}
	for _, output := range out {
		if scripts.Question.MatchString(output.Text) && !asks[output.Line.Text] {
			t.Errorf("%s:%d asks:\n%s", file(page), output.Line.Number, output.Text)
		}
	}
}

// bundle writes what is checked out here, as git clones it.
func bundle(t *testing.T, file string) {
	t.Helper()
	repository, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "git", "-C", repository, "bundle", "create", file, "HEAD").CombinedOutput(); err != nil {
		t.Fatalf("git bundle: %v\n%s", err, out)
	}
}

// fresh boots a machine that has nothing installed, and opens a terminal on it. It has no internet,
// so below /opt and in apt's cache is what the table has in its place.
func fresh(t *testing.T, release, name, shared string) reader {
	t.Helper()
	kube := require.Given(t, "BERTH_KUBE", "directory of Kubernetes' programs: run make start-test")
	debs, err := filepath.Glob("../../out/start-" + release + "/*.deb")
	if err != nil || len(debs) == 0 {
		t.Fatalf("the packages for the machine are not there: run make start-test: %v", err)
	}
	add := map[string]string{"/opt/berth.bundle": filepath.Join(shared, "berth.bundle")}
	for _, deb := range debs {
		add["/var/cache/apt/archives/"+filepath.Base(deb)] = deb
	}
	bind := map[string]string{"/opt/shared": shared, "/opt/kube": kube}
	for at, variable := range map[string]string{"/opt/go": "GOROOT", "/opt/modules": "GOMODCACHE", "/opt/cache": "GOCACHE"} {
		out, err := exec.CommandContext(t.Context(), "go", "env", variable).Output()
		if err != nil {
			t.Fatalf("go env %s: %v", variable, err)
		}
		bind[at] = strings.TrimSpace(string(out))
	}
	if bind["/opt/rootfs"], err = filepath.Abs("../../out/systemd/root"); err != nil {
		t.Fatal(err)
	}
	for at, dir := range bind {
		if bind[at], err = filepath.EvalSymlinks(dir); err != nil {
			t.Fatal(err)
		}
	}
	r := reader{Machine: systemd.Boot(t, systemd.Options{Release: release, Add: add, Bind: bind}), t: t}
	r.Run("hostname", name)
	r.Write("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 "+name+"\n")
	r.Write("/etc/resolv.conf", "nameserver 192.0.2.1\n") // nobody answers there
	r.Write("/root/.config/go/env", "GOPROXY=off\nGOMODCACHE=/opt/modules\nGOCACHE=/opt/cache\n")
	// A container of this host: its kubelet may not change the kernel or its own OOM score, and has the
	// disk of this host, however full that is.
	r.Run("mknod", "/dev/kmsg", "c", "1", "11")
	r.Write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--feature-gates=KubeletInUserNamespace=true --oom-score-adj=0 --eviction-hard=memory.available<50Mi\n")
	t.Cleanup(func() {
		if t.Failed() {
			journal, err := r.Try("journalctl", "--no-pager", "-o", "cat", "-n", "40", "-u", "berth", "-u", "berth-supervisor", "-u", "kubelet")
			t.Logf("the journal of %s (%v):\n%s", name, err, journal)
		}
	})
	r.sh = r.terminal()
	return r
}

// terminal opens a terminal on the machine.
func (r reader) terminal() *scripts.Shell {
	r.t.Helper()
	return scripts.Open(r.t, r.Machine.Shell(context.WithoutCancel(r.t.Context()), scripts.Reader), patience)
}
