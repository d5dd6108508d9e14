package pod_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// TestAdmissionOfANamespace: an image that pods of another namespace may use is refused.
func TestAdmissionOfANamespace(t *testing.T) {
	b := newBed(t, nil)
	b.Images.(*podtest.Images).Admits = func(namespace, name string) error {
		if namespace == "strict" {
			return &image.RefusedError{Err: fmt.Errorf("%s is refused: %w", name, errs.State)}
		}
		return nil
	}
	for namespace, accepted := range map[string]bool{"strict": false, "open": true} {
		config := b.SandboxConfig(namespace)
		config.Metadata.Namespace = namespace
		sandbox := b.mustRun(config)
		_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Sleep))
		var refused *image.RefusedError
		if errors.As(err, &refused) == accepted || accepted && err != nil {
			t.Errorf("namespace %s: %v", namespace, err)
		}
	}
	b.clear()
}
