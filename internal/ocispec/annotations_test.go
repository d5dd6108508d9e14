package ocispec

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/request"
)

// The runtime sets properties of systemd units that annotations name, ExecStopPost of the
// host's systemd for one. Whatever an operator lets hooks see, no pod sets them
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
