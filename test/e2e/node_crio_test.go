//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/systemd"
)

// crioNode is a node of a CRI-O from its release. The pods' runtime is Debian's runc.
const crioNode = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime:
  name: crio
  sandboxImage: berth.run/hello:demo
  defaultHandler: runc
  assets:
  - {source: /opt/@NAME@, digest: "sha256:@SUM@"}
packages: {install: [conmon, podman, runc]}
network: {mode: kubenet, podCIDRs: [10.88.7.0/24]}
kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`

// TestNodeOfCRIO creates a node of CRI-O, as its project releases it. CRIO names such an archive
// (cri-o.amd64.v1.36.0.tar.gz), because no package source here has it.
func TestNodeOfCRIO(t *testing.T) {
	archive := require.Given(t, "CRIO", "an archive of CRI-O's release")
	debs, err := filepath.Glob("../../out/systemd-debs/*.deb")
	if err != nil || len(debs) == 0 {
		t.Fatalf("the packages are not there: run test/systemd/debs.sh out/systemd-debs conmon podman: %v", err)
	}
	files := map[string]string{"/opt/" + filepath.Base(archive): archive}
	for _, deb := range debs {
		files["/var/cache/apt/archives/"+filepath.Base(deb)] = deb
	}
	m := systemd.BootNode(t, files)
	m.Write(systemd.NodeFile, "")
	m.Write("/etc/hello-pod.yaml", webPod)
	before := m.Tree(systemd.Volatile()...)
	const endpoint = "unix:///var/run/crio/crio.sock"

	text := strings.NewReplacer("@NAME@", filepath.Base(archive), "@SUM@", sumOf(t, archive)).Replace(crioNode)
	m.Applied(text)
	m.IsWell()
	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml", "--endpoint", endpoint)
	m.PodAnswers(endpoint, 8081)

	// If `crio config` refuses the configuration, apply stops before the restart. If only the start
	// fails, apply undoes the change, and the old configuration runs again.
	for _, bad := range []struct{ addition, says string }{
		{"crio.runtime.default_runtime: nonsense", "is read by the installed crio"},
		{"crio.runtime.cgroup_manager: nonsense", "cannot restart crio.service"},
	} {
		m.Describe(strings.Replace(text, "  defaultHandler", "  config: {additions: {"+bad.addition+"}}\n  defaultHandler", 1))
		out, err := m.Try("/opt/berth", "node", "apply", "--yes", "--allow-disruption")
		if err == nil || !strings.Contains(out, bad.says) || !strings.Contains(out, "rolled back") || strings.Contains(out, "done  restart crio.service") {
			t.Errorf("with %s apply ends with %v, and does not say %q:\n%s", bad.addition, err, bad.says, out)
		}
		m.PodAnswers(endpoint, 8081)
	}

	m.Describe(strings.Replace(text, "name: crio", "name: crio\n  logLevel: debug", 1))
	if out := m.Run("/opt/berth", "node", "apply", "--yes"); !strings.Contains(out, "done  restart crio.service") || strings.Contains(out, "no sandbox was tried") {
		t.Errorf("want a restart, and a test sandbox after it:\n%s", out)
	}
	m.PodAnswers(endpoint, 8081)
	m.Write(systemd.NodeFile, "")
	m.WasReset(before, "--allow-disruption")
}

func sumOf(t *testing.T, name string) string {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
