package ocispec

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/request"
)

// The runtime sets properties of systemd units from annotations, for example ExecStopPost in the
// host's systemd. An operator may pass any annotations to hooks, but no pod can set such a property
// (CVE-2024-3154).
func TestAnnotationsThatCommandTheRuntimeAreLeftOut(t *testing.T) {
	hostile := map[string]string{
		"org.systemd.property.ExecStopPost": "[('/bin/sh', ['sh', '-c', 'id'], false)]",
		"org.systemd.property.Delegate":     "true",
		"org.systemd.property.":             "x",
		"org.criu.config":                   "/tmp/criu.conf",
		"bundle":                            "/",
		"example.org/kept":                  "1",
	}
	for _, pattern := range []string{"*", "org.systemd.property.*", "org.*"} {
		passed := request.PassedAnnotations(hostile, []string{pattern, "example.org/*"})
		got := annotationsOf(Input{Config: &runtimeapi.ContainerConfig{}, SandboxConfig: &runtimeapi.PodSandboxConfig{}, Annotations: passed})
		for key := range hostile {
			if _, ok := got[key]; ok != (key == "example.org/kept") {
				t.Errorf("pattern %q: %s passed: %t", pattern, key, ok)
			}
		}
	}
	if got := request.IgnoredAnnotations(hostile, nil); len(got) != 5 {
		t.Errorf("named in the log are %q", got)
	}
}
