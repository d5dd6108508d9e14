//go:build integration

package docker_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// scoreOf reads the oom_score_adj of a process.
func scoreOf(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return score
}

// TestEngineWithoutSysResource: an engine that cannot lower scores runs pods. Lower scores are raised to
// its own; the others are as requested. People see both, and a warning.
func TestEngineWithoutSysResource(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{NoSysResource: true})
	limit, err := sysproc.OOMScoreLimitOf(d.Pid())
	if err != nil || limit.Lowers {
		t.Fatalf("the engine has the capability: %+v, %v", limit, err)
	}
	image := dockertest.LoadImage(t, d)
	e := newEngine(t, d)
	p := newPod(t, e, image)
	if got := scoreOf(t, p.sb.Pid); got != limit.Own {
		t.Errorf("the pause container has %d, want %d", got, limit.Own)
	}
	for name, score := range map[string]int{"spared": -997, "first": 1000} {
		id := p.run(name, "exec sleep 100000", func(config *runtimeapi.ContainerConfig) {
			config.Linux.Resources.OomScoreAdj = int64(score)
		})
		want := max(score, limit.Own)
		if got := scoreOf(t, p.pidOf(id)); got != want {
			t.Errorf("%s: the container has %d, want %d", name, got, want)
		}
		shown, err := e.Inspect(t.Context(), &engine.InspectSpec{ContainerID: id})
		if err != nil {
			t.Fatal(err)
		}
		if spec, ok := shown["runtimeSpec"].(*specs.Spec); !ok || *spec.Process.OOMScoreAdj != want {
			t.Errorf("%s: shown %+v, want %d", name, shown["runtimeSpec"], want)
		}
	}
	info, err := e.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(info.Warnings, func(w string) bool {
		return strings.Contains(w, "oom_score_adj of containers cannot be lowered below "+strconv.Itoa(limit.Own)) && strings.Contains(w, "CAP_SYS_RESOURCE")
	}) {
		t.Errorf("the warnings are %q", info.Warnings)
	}
}
