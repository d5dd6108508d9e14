//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/test/harness"
)

// TestNodeDebug: the pod of `kubectl debug node` is in the host's namespaces. It has the host's
// root file system at /host, where it reads, writes and runs programs.
func TestNodeDebug(t *testing.T) {
	namespaces := &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE,
	}
	f := newFields(t, harness.Options{}, func(c *runtimeapi.PodSandboxConfig) {
		c.Hostname = "" // a kubelet names none for the host's network
		c.Linux.SecurityContext.NamespaceOptions = namespaces
	})
	dir := t.TempDir()
	given := filepath.Join(dir, "given")
	if err := os.WriteFile(given, []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	debug := func(c containerConfig) {
		containerSecurity(c).NamespaceOptions = namespaces
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{HostPath: "/", ContainerPath: "/host"})
	}
	var links []string
	for _, kind := range []string{"pid", "net", "ipc", "uts"} {
		link, err := f.InHost("readlink", "/proc/self/ns/"+kind).Output()
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, strings.TrimSpace(string(link)))
	}
	want(t, "namespaces", f.says(t, "for ns in pid net ipc uts; do readlink /proc/self/ns/$ns; done", debug), strings.Join(links, " "))
	want(t, "the host's files", f.says(t, "cat /host"+given+" && echo written >/host"+dir+"/written", debug), "of the host")
	want(t, "a program of the host", f.says(t, "chroot /host /bin/cat "+dir+"/written", debug), "written")
	if text, err := os.ReadFile(filepath.Join(dir, "written")); string(text) != "written\n" || err != nil {
		t.Errorf("the host reads %q: %v", text, err)
	}
}
