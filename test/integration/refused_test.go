//go:build integration

package integration

import (
	"maps"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// engineRefuses reports whether the engine under test refuses a request, which is a constant of package
// translate. If so, it makes the request by change, and requires that berth refuses it with the reason
// and with words.
func engineRefuses(t *testing.T, b *harness.Berth, requested string, change podChange, words ...string) bool {
	t.Helper()
	reason := b.Refuses(requested)
	if reason == nil {
		return false
	}
	config, container := b.Sandbox("refused"), b.Container("refused", "exit 0")
	change(config, container)
	words = append(words, reason.Error())
	answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		checkRefusal(t, err, codes.Unimplemented, words)
		return true
	}
	defer b.RemovePod(answer.PodSandboxId)
	_, err = b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: answer.PodSandboxId, Config: container, SandboxConfig: config})
	checkRefusal(t, err, codes.Unimplemented, words)
	return true
}

// ofContainer is a change of a container alone.
func ofContainer(change func(containerConfig)) podChange {
	return func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) { change(container) }
}

// honoured are the variants of a pod that the engine under test honours: those in user namespaces, whose
// names end in -users, if it has user namespaces.
func honoured(b *harness.Berth, variants map[string]podChange) map[string]podChange {
	b.T.Helper()
	if b.Refuses(translate.UserNamespaces) != nil {
		maps.DeleteFunc(variants, func(name string, _ podChange) bool { return strings.HasSuffix(name, "-users") })
	}
	return variants
}
