package docker

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/checkpoints"
	"github.com/berthrun/berth/internal/engine/docker/endings"
	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/engine/podcgroup"
)

// TestTargetsWithoutACgroup: an adopted pod without a cgroup of its own has the figures of its network
// alone, not those of the cgroup that the engine puts all such containers in.
func TestTargetsWithoutACgroup(t *testing.T) {
	for _, driver := range []string{podcgroup.Cgroupfs, podcgroup.Systemd} {
		e := &Engine{podCgroups: podcgroup.New(podcgroup.Config{Driver: driver}, nil)}
		targets, err := e.sandboxTargets([]engine.SandboxRef{{
			Spec: &engine.SandboxSpec{ID: "a"}, Sandbox: &engine.Sandbox{NetNS: "/run/netns/a"},
		}})
		if got := targets["a"]; err != nil || len(got.Cgroups) != 0 || got.NetNS != "/run/netns/a" {
			t.Errorf("%s: %+v, %v", driver, got, err)
		}
	}
}

// TestCheckpointsOfAdoptedPods: a checkpoint goes with its adopted sandbox, also when the removal is
// repeated. Without adopted sandboxes the directories are none of berth's business.
func TestCheckpointsOfAdoptedPods(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "sandbox", "a")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	e := &Engine{former: checkpoints.Dirs{Roots: []string{root}}, objects: newObjects(nil, "test", nil, slog.New(slog.DiscardHandler))}
	e.objects.put("a", object{engineID: "a", sandbox: true})
	if err := e.removeCheckpoint("a"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the checkpoint of a sandbox that is not adopted: %v", err)
	}
	e.objects.adopt("a", true)
	e.objects.forget("a") // its container is removed, and berth is killed or fails then
	if err := e.removeCheckpoint("a"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the checkpoint is left: %v", err)
	}
	if e.objects.removed("a"); e.objects.isAdopted("a") {
		t.Error("a removed sandbox is adopted")
	}
}

// TestFormerPIDNamespace: a pause container does not show whether containers share its PID namespace.
// They do, and the sandbox has that namespace, if one of them says so.
func TestFormerPIDNamespace(t *testing.T) {
	const sandboxID, containerID = "5a0db0c1f0a6e1f5a0db0c1f0a6e1f5a0db0c1f0a6e1f5a0db0c1f0a6e1f0001", "c0c1f0a6e1f5a0db0c1f0a6e1f5a0db0c1f0a6e1f5a0db0c1f0a6e1f00000002"
	for mode, want := range map[string]runtimeapi.NamespaceMode{
		"": runtimeapi.NamespaceMode_CONTAINER, "container:" + sandboxID: runtimeapi.NamespaceMode_POD,
	} {
		inspected := func(file string) string {
			text, err := os.ReadFile(filepath.Join("legacy", "testdata", file))
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		inner := strings.Replace(inspected("container.json"), `"PidMode": ""`, `"PidMode": "`+mode+`"`, 1)
		fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
			"GET /containers/json": fakeengine.Text(`[{"Id": "` + sandboxID + `", "Labels": {"io.kubernetes.docker.type": "podsandbox"}},
				{"Id": "` + containerID + `", "Labels": {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": "` + sandboxID + `"}}]`),
			"GET /containers/" + sandboxID + "/json":   fakeengine.Text(inspected("sandbox.json")),
			"GET /containers/" + containerID + "/json": fakeengine.Text(inner),
		}})
		client, err := api.New(api.Options{Endpoint: fake.Endpoint})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		log := slog.New(slog.DiscardHandler)
		e := &Engine{client: client, log: log, cfg: Config{Adoption: Adoption{On: true}}, objects: newObjects(client, "test", nil, log), unstarted: endings.NewUnstarted()}
		e.facts.Store(&translate.Facts{Facts: api.Facts{RootDir: t.TempDir()}})
		former, err := e.Former(t.Context())
		if err != nil || len(former.Sandboxes) != 1 || len(former.Containers) != 1 {
			t.Fatalf("%q: %+v, %v", mode, former, err)
		}
		sandbox := former.Sandboxes[0]
		var pause pauseContainer
		if err := sandbox.Sandbox.DecodeBackend(&pause); err != nil {
			t.Fatal(err)
		}
		if got := sandbox.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid(); got != want || pause.SharesPIDs != (want == runtimeapi.NamespaceMode_POD) {
			t.Errorf("containers with PID mode %q: the sandbox has %v, %+v", mode, got, pause)
		}
	}
}
