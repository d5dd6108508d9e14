package docker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/engine/notice"
	"github.com/berthrun/berth/internal/errs"
)

// notReadyReason is the reason of a node's condition while the Docker Engine does not answer.
// Tools know it from dockershim.
const notReadyReason = "DockerDaemonNotReady"

// Info describes the Docker Engine. It is an engine.NotReadyError while that does not answer.
func (e *Engine) Info(ctx context.Context) (*engine.Info, error) {
	facts, err := e.readFacts(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.checkSameDriver(facts); err != nil {
		return nil, &engine.NotReadyError{Reason: notReadyReason, Err: err}
	}
	if facts.Podman {
		return nil, &engine.NotReadyError{Reason: notReadyReason, Err: errPodman()}
	}
	info := &engine.Info{
		Name: "docker", Version: facts.Version, CgroupDriver: facts.CgroupDriver, HugePages: false,
		Handlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: facts.RecursiveReadOnly(),
		}}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
		Warnings: slices.Clone(facts.Warnings),
	}
	if unused := e.rules().UnusedKeys; len(unused) > 0 {
		info.Warnings = append(info.Warnings, UnusedWarning(unused))
	}
	if warning := e.scores.Warning(ctx); warning != "" {
		info.Warnings = append(info.Warnings, warning)
	}
	if warning := e.apparmor.Warning(); warning != "" && !e.rules().AppArmorOff {
		info.Warnings = append(info.Warnings, warning)
	}
	return info, nil
}

// errPodman is why no pod starts over podman's socket.
func errPodman() error {
	return fmt.Errorf("the engine is podman, which reads seccomp profiles from files only, and so starts no pod of berth; "+
		"images work; use a Docker Engine, or engine = \"native\": %w", errs.Unsupported)
}

// UnusedWarning is the warning about keys of the configuration that have no effect.
func UnusedWarning(keys []string) string {
	return fmt.Sprintf("these keys of berth's configuration have no effect with engine docker, whose own configuration decides: %s", strings.Join(keys, ", "))
}

func (e *Engine) notices() notice.Notices {
	rules := e.rules()
	return notice.Notices{Log: e.log, Allowed: rules.AllowedAnnotations, Host: e.host, Capabilities: rules.Defaults.Capabilities}
}

var _ engine.CallCounter = (*Engine)(nil)

// Calls implements engine.CallCounter: the calls of the Docker Engine's API, those of the image
// store included.
func (e *Engine) Calls() map[string]engine.CallCount {
	counts := map[string]engine.CallCount{}
	for name, c := range e.client.Counts() {
		counts[name] = engine.CallCount{Calls: c.Calls, Errors: c.Errors, Timeouts: c.Timeouts, Seconds: c.Took.Seconds()}
	}
	return counts
}

// readFacts reads what the Docker Engine can do. The result serves checks until the next call.
func (e *Engine) readFacts(ctx context.Context) (*translate.Facts, error) {
	found, err := e.client.Facts(ctx)
	if err != nil {
		return nil, &engine.NotReadyError{Reason: notReadyReason, Err: err}
	}
	facts := translate.FactsOf(found)
	e.facts.Store(&facts)
	return &facts, nil
}

// checkSameDriver refuses an engine that was started again with another cgroup driver: the
// cgroups of pods would be elsewhere than those of their containers.
func (e *Engine) checkSameDriver(facts *translate.Facts) error {
	if facts.CgroupDriver == e.driver {
		return nil
	}
	return fmt.Errorf("the Docker engine was started again with cgroup driver %s, and berth uses %s; restart berth: %w",
		facts.CgroupDriver, e.driver, errs.State)
}

var _ engine.Inspector = (*Engine)(nil)

// Inspect implements engine.Inspector. "docker" is what the Docker Engine says of the container, and
// "runtimeSpec" shows the same in the form of the OCI spec.
func (e *Engine) Inspect(ctx context.Context, requested *engine.InspectSpec) (map[string]any, error) {
	got, err := e.objects.inspect(ctx, requested.ContainerID)
	if err != nil {
		return nil, err
	}
	spec := translate.View(got, requested.Secrets)
	got.Config.Env = spec.Process.Env
	return map[string]any{
		"docker": got, "dockerID": got.ID, "runtimeSpec": spec,
		"snapshotter": e.facts.Load().StorageDriver, "snapshotKey": got.ID,
	}, nil
}
