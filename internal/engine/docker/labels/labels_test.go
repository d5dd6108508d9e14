package labels

import (
	"maps"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
)

const (
	sandboxID   = "5a1d000000000000000000000000000000000000000000000000000000000001"
	containerID = "5a1d000000000000000000000000000000000000000000000000000000000002"
	dockerID    = "9e0bb9943941e2308fa2cf57db1bbb105a685036800e07cfa920b8b392ce14f5"
)

func sandboxSpec(labels, annotations map[string]string) *engine.SandboxSpec {
	return &engine.SandboxSpec{
		ID:     sandboxID,
		Config: &runtimeapi.PodSandboxConfig{Labels: labels, Annotations: annotations},
	}
}

func TestOfSandbox(t *testing.T) {
	request := map[string]string{"app": "web", "io.kubernetes.pod.name": "web-0"}
	got := OfSandbox(sandboxSpec(request, map[string]string{"example.com/note": "a\nb"}), "node-1")
	want := map[string]string{
		"app":                          "web",
		"io.kubernetes.pod.name":       "web-0",
		"annotation.example.com/note":  "a\nb",
		"io.kubernetes.docker.type":    "podsandbox",
		"io.kubernetes.container.name": "POD",
		"run.berth.id":                 sandboxID,
		"run.berth.instance":           "node-1",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if len(request) != 2 {
		t.Errorf("the labels of the request were changed: %v", request)
	}
}

func TestOfContainer(t *testing.T) {
	spec := &engine.ContainerSpec{
		ID:          containerID,
		SandboxSpec: sandboxSpec(map[string]string{"app": "web"}, nil),
		Config: &runtimeapi.ContainerConfig{
			Labels:      map[string]string{"io.kubernetes.container.name": "server"},
			Annotations: map[string]string{"io.kubernetes.container.hash": "1234"},
		},
		LogPath: "/var/log/pods/x/server/0.log",
	}
	want := map[string]string{
		"io.kubernetes.container.name":            "server",
		"annotation.io.kubernetes.container.hash": "1234",
		"io.kubernetes.docker.type":               "container",
		"io.kubernetes.container.logpath":         "/var/log/pods/x/server/0.log",
		"io.kubernetes.sandbox.id":                dockerID,
		"run.berth.id":                            containerID,
		"run.berth.sandbox":                       sandboxID,
		"run.berth.instance":                      "default",
		"run.berth.logs":                          "/var/log/pods/x",
	}
	spec.SandboxSpec.Config.LogDirectory = "/var/log/pods/x"
	if got := OfContainer(spec, "default", dockerID); !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	// The image's label must not take its place.
	spec.LogPath, want[LogPath] = "", ""
	if got := OfContainer(spec, "default", dockerID); !maps.Equal(got, want) {
		t.Errorf("without a log: got %v\nwant %v", got, want)
	}
}

func TestRequestCannotForgeLabels(t *testing.T) {
	forged := map[string]string{
		Type: TypeContainer, LogPath: "/etc/shadow", SandboxDockerID: dockerID,
		ID: containerID, SandboxID: containerID, Instance: "other", Image: ImagePause,
	}
	got := OfSandbox(sandboxSpec(forged, nil), "default")
	want := map[string]string{Type: TypeSandbox, Container: PauseName, ID: sandboxID, Instance: "default"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func TestSplit(t *testing.T) {
	labels := map[string]string{"app": "web", "empty": "", "io.kubernetes.pod.uid": "1"}
	annotations := map[string]string{"a": "1", "annotation.b": "2", Type: "podsandbox"}
	for name, test := range map[string]struct {
		docker, labels, annotations map[string]string
	}{
		"no labels":          {docker: nil},
		"a sandbox":          {OfSandbox(sandboxSpec(labels, annotations), "x"), labels, annotations},
		"of the pause image": {docker: map[string]string{Type: TypeSandbox, Image: ImagePause}},
		"a container": {
			OfContainer(&engine.ContainerSpec{
				SandboxSpec: sandboxSpec(nil, nil),
				Config:      &runtimeapi.ContainerConfig{Labels: labels, Annotations: annotations},
				LogPath:     "/l",
			}, "x", dockerID), labels, annotations,
		},
		"the name of a container stays": {
			map[string]string{Type: TypeContainer, Container: "server"},
			map[string]string{Container: "server"},
			nil,
		},
		"an annotation wins over a label": {
			OfSandbox(sandboxSpec(map[string]string{"annotation.a": "label"}, map[string]string{"a": "x"}), "x"),
			nil,
			map[string]string{"a": "x"},
		},
		"of cri-dockerd": {
			map[string]string{
				"annotation.kubernetes.io/config.source": "api", "io.kubernetes.container.name": "POD",
				"io.kubernetes.docker.type": "podsandbox", "io.kubernetes.pod.name": "web-0",
			},
			map[string]string{"io.kubernetes.pod.name": "web-0"},
			map[string]string{"kubernetes.io/config.source": "api"},
		},
	} {
		gotLabels, gotAnnotations := Split(test.docker)
		if gotLabels == nil || gotAnnotations == nil {
			t.Errorf("%s: a map is nil", name)
		}
		if !maps.Equal(gotLabels, test.labels) || !maps.Equal(gotAnnotations, test.annotations) {
			t.Errorf("%s: got %v and %v", name, gotLabels, gotAnnotations)
		}
	}
}
