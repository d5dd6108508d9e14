//go:build integration && e2e

package start

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/systemd"
)

// reader is a person who follows the pages on a machine.
type reader struct {
	*systemd.Machine
	t      *testing.T
	name   string
	first  *shell
	second *shell // nil while no command is in the foreground of the first terminal
	until  string // the command before which Ctrl-C ends that one
	done   map[string]bool
}

// TestFiveMinutes follows the three pages on a fresh Debian 13 and a fresh Debian 12, line by line: from nothing to a
// pod, to a cluster, to a node, and to a second node.
func TestFiveMinutes(t *testing.T) {
	shared, done := t.TempDir(), map[string]bool{}
	bundle(t, filepath.Join(shared, "berth.bundle"))

	one := fresh(t, "debian-13", "other", shared, done)
	one.follows("pod")
	one.follows("cluster")

	two := fresh(t, "debian-12", "plane", shared, done)
	systemd.Link(two.Machine, "192.0.2.10/24", one.Machine, "192.0.2.11/24")
	two.Run("ip", "route", "add", "default", "via", "192.0.2.11")
	one.Run("ip", "route", "add", "default", "via", "192.0.2.10")
	two.follows("pod", "Build and install")
	two.follows("node", "Before you begin", "Write the node file", "Look, then apply", "Create a cluster")
	two.types(nth(t, "Join another machine", 0))

	for _, c := range commands(t, "node") {
		switch c.section {
		case "Before you begin", "Write the node file", "Look, then apply":
			c.text = strings.ReplaceAll(c.text, "10.244.0.0/24", "10.244.1.0/24") // as the page says
			one.types(c)
		}
	}
	copied, err := os.ReadFile(filepath.Join(two.Root, "root/berth/join.txt"))
	if err != nil {
		t.Fatal(err)
	}
	one.Write("/root/berth/join.txt", string(copied))
	one.types(nth(t, "Join another machine", 1))
	one.types(nth(t, "Join another machine", 2))
	if out, status := two.first.run("kubectl wait --for=create node/other --timeout 2m && kubectl wait --for=condition=Ready node/other --timeout 2m && kubectl get nodes", ""); status != "0" {
		t.Errorf("the second node: %s", out)
	}
	two.follows("node", "Look again", "Go back")

	for _, page := range pageNames() {
		for _, c := range commands(t, page) {
			if !done[c.place()] {
				t.Errorf("%s: nobody has typed %q", c.place(), c.text)
			}
		}
	}
}

// nth is a command of a section of the page about nodes.
func nth(t *testing.T, section string, n int) command {
	t.Helper()
	for _, c := range commands(t, "node") {
		if c.section == section {
			if n == 0 {
				return c
			}
			n--
		}
	}
	t.Fatalf("docs/start/node.md has too few commands in %q", section)
	return command{}
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
func fresh(t *testing.T, release, name, shared string, done map[string]bool) *reader {
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
	r := &reader{Machine: systemd.Boot(t, systemd.Options{Release: release, Add: add, Bind: bind}), t: t, name: name, done: done}
	r.Run("hostname", name)
	r.Write("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 "+name+"\n")
	r.Write("/etc/resolv.conf", "nameserver 192.0.2.1\n") // nobody answers there
	r.Write("/root/.config/go/env", "GOPROXY=off\nGOMODCACHE=/opt/modules\nGOCACHE=/opt/cache\n")
	// A container of this host: its kubelet may not change the kernel or its own OOM score, and has the
	// disk of this host, however full that is.
	r.Run("mknod", "/dev/kmsg", "c", "1", "11")
	r.Write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--feature-gates=KubeletInUserNamespace=true --oom-score-adj=0 --eviction-hard=memory.available<50Mi\n")
	r.first = open(t, r.Machine)
	return r
}

// follows types the commands of a page in their order, or those of some sections.
func (r *reader) follows(page string, sections ...string) {
	r.t.Helper()
	left := map[string]bool{}
	for _, section := range sections {
		left[section] = true
	}
	for _, c := range commands(r.t, page) {
		if len(sections) > 0 {
			delete(left, c.section)
		}
		if len(sections) == 0 || strings.Contains("\n"+strings.Join(sections, "\n")+"\n", "\n"+c.section+"\n") {
			r.types(c)
		}
	}
	for section := range left {
		r.t.Fatalf("docs/start/%s.md has no commands in %q", page, section)
	}
}

// types types one command, or what the table has in its place.
func (r *reader) types(c command) {
	r.t.Helper()
	var known row
	for _, row := range table() {
		if row.page == c.page && row.command == c.bare() {
			known = row
		}
	}
	if r.until != "" && r.until == c.bare() {
		r.first.types(ctrlC)
		r.first.await("the prompt after Ctrl-C", prompt.MatchString)
		r.second, r.until = nil, ""
	}
	at := r.first
	if r.second != nil {
		at = r.second
	}
	for line := range strings.SplitSeq(known.first, "\n") {
		if line != "" {
			r.must(at, c, line, "")
		}
	}
	text := c.text
	if known.instead != "" {
		text = known.instead
	}
	r.done[c.place()] = true
	if known.ready != "" {
		at.types(text + "\n")
		at.await(fmt.Sprintf("%q of %s", known.ready, text), func(shown string) bool { return strings.Contains(shown, known.ready) })
		r.second, r.until = open(r.t, r.Machine), known.until
		return
	}
	out := r.must(at, c, text, known.asks)
	if known.prints != "" && !regexp.MustCompile(known.prints).MatchString(out) {
		r.t.Fatalf("%s on %s: %s prints no %s:\n%s", c.place(), r.name, text, known.prints, out)
	}
	if known.then != "" {
		r.must(at, c, known.then, "")
	}
}

// must types a command that succeeds.
func (r *reader) must(at *shell, c command, text, asks string) string {
	r.t.Helper()
	out, status := at.run(text, asks)
	if status != "0" {
		journal, err := r.Try("journalctl", "--no-pager", "-o", "cat", "-n", "40", "-u", "berth", "-u", "berth-supervisor", "-u", "kubelet")
		r.t.Fatalf("%s on %s: exit status %s\n%s\n%s", c.place(), r.name, status, out, errors.Join(errors.New(journal), err))
	}
	r.t.Logf("%s on %s: %s", c.place(), r.name, out)
	return out
}
