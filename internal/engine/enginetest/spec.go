package enginetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// AnnotationCDI is the annotation of a fake's OCI spec with the names of CDI devices that were
// injected by engine.ContainerSpec.Adjust, as JSON.
const AnnotationCDI = "enginetest/cdi"

// adjusted returns the OCI spec of a container: its program and environment, as its caller has
// adjusted them.
func (f *Fake) adjusted(ctx context.Context, spec *engine.ContainerSpec) (*specs.Spec, error) {
	oci := &specs.Spec{
		Process:     &specs.Process{Args: append(slices.Clone(spec.Config.GetCommand()), spec.Config.GetArgs()...)},
		Annotations: map[string]string{},
		Linux:       &specs.Linux{},
	}
	if spec.Sandbox != nil {
		oci.Linux.CgroupsPath = spec.Sandbox.CgroupParent + "/" + spec.ID
	}
	for _, env := range spec.Config.GetEnvs() {
		oci.Process.Env = append(oci.Process.Env, env.GetKey()+"="+string(env.GetValue()))
	}
	if spec.Adjust == nil {
		return oci, nil
	}
	err := spec.Adjust(ctx, oci, &engine.Names{
		CDI: func(names []string) error {
			text, err := json.Marshal(names)
			oci.Annotations[AnnotationCDI] = string(text)
			return err
		},
		BlockIO: func(class string) (*specs.LinuxBlockIO, error) {
			return nil, fmt.Errorf("there is no class %q: %w", class, errs.Invalid)
		},
		RDT: func(class string) (*specs.LinuxIntelRdt, error) {
			return nil, fmt.Errorf("there is no class %q: %w", class, errs.Invalid)
		},
	})
	return oci, err
}

// ContainerSpec implements engine.SpecReader.
func (f *Fake) ContainerSpec(_ context.Context, id string, _ *runtimeapi.LinuxContainerResources) (*specs.Spec, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.containers[id] == nil {
		return nil, fmt.Errorf("container %q: %w", id, errs.NotFound)
	}
	return f.containers[id].oci, nil
}
