//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestNoAnnotationCommandsTheRuntime: an operator passes all annotations of a pod to hooks. They
// still set no property of a systemd unit (CVE-2024-3154).
func TestNoAnnotationCommandsTheRuntime(t *testing.T) {
	b := harness.Start(t, harness.Options{Config: "[runtime]\npod_annotations = ['*']\ncontainer_annotations = ['*', 'org.systemd.property.*']\n"})
	config, container := b.Sandbox("hostile"), b.Container("c", "sleep 1000")
	file := filepath.Join(b.Dir, "by-systemd")
	for _, annotations := range []*map[string]string{&config.Annotations, &container.Annotations} {
		*annotations = map[string]string{
			"org.systemd.property.ExecStopPost": "[('/usr/bin/touch', ['touch', '" + file + "'], false)]", "bundle": "/", "kept": "seen",
		}
	}
	sandbox := b.RunSandbox(config)
	created := b.Create(sandbox, container, config)
	b.StartContainer(created)
	answer, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: created, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		RuntimeSpec struct{ Annotations map[string]string }
	}
	decode(t, answer.Info, &info)
	if spec := info.RuntimeSpec.Annotations; (spec["kept"] == "seen") != b.Has(harness.Hooks) || spec["bundle"] != "" || spec["org.systemd.property.ExecStopPost"] != "" {
		t.Errorf("the runtime sees %v", spec)
	}
	if log := b.LogTail(); b.Has(harness.Hooks) && (!strings.Contains(log, "ignoring annotations") || !strings.Contains(log, "org.systemd.property.ExecStopPost")) {
		t.Errorf("nothing in the log: %s", log)
	}
	b.RemovePod(sandbox)
	if _, err := os.Lstat(file); err == nil {
		t.Error("the host's systemd ran the pod's command")
	}
}
