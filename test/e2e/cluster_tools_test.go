//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"
)

// nodeTools: commands that people and scripts type on a node of kind's work on a node of berth's,
// and so does `kubectl debug node`.
func (h *clusterHost) nodeTools(t *testing.T, archive string) {
	in := func(stdin []byte, args ...string) string {
		t.Helper()
		out, err := h.try(stdin, append([]string{h.engine, "exec", "-i", "e2e-worker"}, args...)...)
		if err != nil {
			t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	version := h.kubectl("get", "node", "e2e-worker", "-o", "jsonpath={.status.nodeInfo.kubeletVersion}")
	if got := in(nil, "cat", "/kind/version"); got != version {
		t.Errorf("/kind/version has %q, the kubelet is %s", got, version)
	}
	id := in(nil, "crictl", "ps", "--quiet", "--name", "^web$")
	if got := in(nil, "crictl", "inspect", "--output", "go-template", "--template", "{{.status.state}}", id); got != "CONTAINER_RUNNING" {
		t.Errorf("crictl inspect %q: %q", id, got)
	}
	image, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	in(image, "ctr", "--namespace=k8s.io", "images", "import", "-")
	in(nil, "ctr", "--namespace=k8s.io", "images", "tag", "berth.run/hello:demo", "docker.io/library/looker:1")
	if got := in(nil, "ctr", "--namespace=k8s.io", "images", "ls", "-q"); !strings.Contains(got+"\n", "docker.io/library/looker:1\n") {
		t.Errorf("ctr images ls has no image that was tagged:\n%s", got)
	}
	said := h.kubectl("debug", "node/e2e-worker", "--image=looker:1", "--", "cat", "/host/kind/version")
	pod := ""
	for _, word := range strings.Fields(said) {
		if strings.HasPrefix(word, "node-debugger-") {
			pod = word
		}
	}
	h.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+pod, "--timeout="+h.patience())
	if got := h.kubectl("logs", pod); got != version {
		t.Errorf("the debugger of the node reads %q from /kind/version", got)
	}
}
