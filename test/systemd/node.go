package systemd

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/test/harness"
)

// NodeFile is the path of a machine's node file.
const NodeFile = "/etc/berth/node.yaml"

// BootNode boots a machine of Debian 12 with berth in /opt, the demo image beside it, and the files
// of add.
func BootNode(t *testing.T, add map[string]string) *Machine {
	t.Helper()
	return BootNodeOf(t, Options{Add: add})
}

// BootNodeOf is BootNode with other options.
func BootNodeOf(t *testing.T, o Options) *Machine {
	t.Helper()
	bin := harness.BinDir(t)
	files := map[string]string{}
	for _, name := range []string{"berth", "berth-supervisor", "hello-image.tar"} {
		files["/opt/"+name] = filepath.Join(bin, name)
	}
	maps.Copy(files, o.Add)
	o.Add = files
	return Boot(t, o)
}

// Describe writes the node file; @HELLO@ in it is the demo image's hash.
func (m *Machine) Describe(text string) {
	m.t.Helper()
	sum := strings.Fields(m.Run("sha256sum", "/opt/hello-image.tar"))[0]
	m.Write(NodeFile, strings.ReplaceAll(text, "@HELLO@", sum))
}

// Applied applies a node file, and requires that nothing is left to do.
func (m *Machine) Applied(text string) {
	m.t.Helper()
	m.Describe(text)
	m.Run("/opt/berth", "node", "apply", "--yes")
	if out := m.Run("/opt/berth", "node", "apply", "--yes"); !strings.Contains(out, "Nothing to change.") {
		m.t.Errorf("a second apply changes something:\n%s", out)
	}
	m.Run("/opt/berth", "node", "diff")
}

// WasReset resets the machine and compares its tree with what it was before.
func (m *Machine) WasReset(before []string, flags ...string) {
	m.t.Helper()
	out := m.Run(append([]string{"/opt/berth", "node", "reset", "--yes"}, flags...)...)
	if strings.Contains(out, "left unchanged") {
		m.t.Errorf("reset leaves something:\n%s", out)
	}
	m.Run("rm", "-rf", "/var/lib/berth-pods")
	if list, err := m.Try("sh", "-c", "ls -d /run/berth-node*"); err == nil {
		m.t.Errorf("reset leaves %s", list)
	}
	if diff := cmp.Diff(before, m.Tree(Volatile()...)); diff != "" {
		m.t.Errorf("reset leaves the machine different (-before +after):\n%s\n%s", diff, out)
	}
}

// IsAs compares the machine's tree with an earlier one, except what is at or below the paths
// without.
func (m *Machine) IsAs(before []string, what string, without ...string) {
	m.t.Helper()
	before = slices.DeleteFunc(slices.Clone(before), func(line string) bool {
		return slices.ContainsFunc(without, func(path string) bool {
			return strings.HasPrefix(line, path+" ") || strings.HasPrefix(line, path+"/")
		})
	})
	if diff := cmp.Diff(before, m.Tree(append(Volatile(), without...)...)); diff != "" {
		m.t.Errorf("%s leaves the machine different (-before +after):\n%s", what, diff)
	}
}

// IsWell requires that doctor finds no problem.
func (m *Machine) IsWell() {
	m.t.Helper()
	if out, err := m.Try("/opt/berth", "node", "doctor"); err != nil || strings.Contains(out, "problem") {
		m.t.Errorf("doctor finds problems: %v\n%s", err, out)
	}
}

// PodAnswers requests a page of the pod hello from the machine, at the pod's address.
func (m *Machine) PodAnswers(endpoint string, port int) {
	m.t.Helper()
	m.NamedPodAnswers("hello", endpoint, port)
}

// NamedPodAnswers is PodAnswers of another pod.
func (m *Machine) NamedPodAnswers(name, endpoint string, port int) {
	m.t.Helper()
	out := m.Run("/opt/berth", "pod", "inspect", name, "--endpoint", endpoint)
	address := regexp.MustCompile(`(?m)^IP: +([^\s,]+)`).FindStringSubmatch(out)
	if address == nil {
		m.t.Fatalf("the pod has no address:\n%s", out)
	}
	ask := fmt.Sprintf(`for i in {1..50}; do exec 3<>/dev/tcp/%s/%d && break; sleep 0.1; done; printf 'GET / HTTP/1.0\r\n\r\n' >&3; head -1 <&3`, address[1], port)
	if got := m.Run("bash", "-c", ask); !strings.Contains(got, " 200 ") {
		m.t.Errorf("the pod answers %q, want 200", got)
	}
}
