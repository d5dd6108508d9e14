//go:build integration

package native_test

import (
	"context"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The exit of a pod's own init is reported with the sandbox's id.
func TestEndOfPodInitIsReported(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	exits, err := w.Exits(ctx)
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := w.sandbox(func(config *runtimeapi.PodSandboxConfig) {
		config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})
	if err := w.Signal(ctx, spec.ID, syscall.SIGKILL, true); err != nil {
		t.Fatal(err)
	}
	for exit := range exits {
		if exit.ContainerID == spec.ID && exit.Code == 137 {
			return
		}
		t.Errorf("exit %+v", exit)
	}
	t.Error("the end of the init was not told")
}
