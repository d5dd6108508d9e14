//go:build integration

package integration

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
)

// TestArtifacts: a client pulls an OCI artifact, and containers read its files.
func TestArtifacts(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.NeedsPart(t, harness.Artifacts)
	const kind = "application/vnd.example.model"
	registry := &imagetest.Registry{}
	for tag, files := range map[string][]imagetest.ArtifactFile{
		"v1":    {{Title: "model.bin", Content: "weights"}, {Title: "conf/a.json", Content: "{}"}, {Title: "run", Content: "#!/bin/sh\necho ran\n"}},
		"empty": {{Content: "nameless"}},
	} {
		artifact, err := imagetest.Artifact(imagetest.ArtifactSpec{Type: kind, Files: files})
		if err != nil {
			t.Fatal(err)
		}
		registry.Push("model", tag, artifact)
	}
	host := b.Serve(registry)
	ref, empty := host+"/model:v1", host+"/model:empty"
	for _, ref := range []string{ref, empty} {
		if _, err := b.Images.PullImage(b.Ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
	}
	command := func(words ...string) string {
		t.Helper()
		out, stderr, err := b.CLI(append([]string{"image"}, words...)...)
		if err != nil {
			t.Fatalf("berth image %q: %v: %s", words, err, stderr)
		}
		return out
	}
	if out := command("ls"); strings.Count(out, kind) != 2 {
		t.Errorf("image ls shows\n%s", out)
	}
	if out := command("inspect", ref); !strings.Contains(out, "OCI artifact, "+kind) || !strings.Contains(out, "conf/a.json") {
		t.Errorf("image inspect shows\n%s", out)
	}
	t.Run("in a user namespace", func(t *testing.T) { artifactForUsers(t, b, ref) })
	mount := func(ref, sub string) *runtimeapi.Mount {
		return &runtimeapi.Mount{ContainerPath: "/volume", Readonly: true, Image: &runtimeapi.ImageSpec{Image: ref}, ImageSubPath: sub}
	}
	pod := runPodWith(b, "artifact", "sleep 1000", func(_ *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
		c.Mounts = append(c.Mounts, mount(ref, ""))
	})
	second := b.Container("second", "sleep 1000")
	second.Mounts = []*runtimeapi.Mount{mount(ref, "conf")}
	other := b.Create(pod.Sandbox, second, pod.Config)
	b.StartContainer(other)
	if mounts := volumeMounts(b); len(mounts) != 3 {
		t.Errorf("two containers and one volume have the mounts %q", mounts)
	}
	wantOut(t, b, other, [][2]string{{"ls /volume; cat /volume/a.json", "a.json {}"}})

	// An artifact that is removed stays while it is mounted, also over a crash.
	if _, err := b.Images.RemoveImage(b.Ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	b.KillDaemon()
	b.StartDaemon()
	wantOut(t, b, pod.Container, [][2]string{
		{"cat /volume/model.bin", "weights"},
		{"stat -c %a:%u:%g /volume/model.bin", "644:0:0"},
		{"touch /volume/new 2>&1", "touch: /volume/new: Read-only file system"},
		{"/volume/run 2>/dev/null || echo refused", "refused"},
	})
	for _, c := range []struct {
		image  string
		mounts []*runtimeapi.Mount
		code   codes.Code
		want   string
	}{
		{empty, nil, codes.InvalidArgument, empty + " is an OCI artifact (type " + kind + "), not an image"},
		{"", []*runtimeapi.Mount{mount(empty, "")}, codes.InvalidArgument, "ImageVolumeMountFailed: config.mounts[0].image.image: the OCI artifact " + empty},
		{"", []*runtimeapi.Mount{mount(ref, "")}, codes.NotFound, "ImageVolumeMountFailed"},
	} {
		config := b.Container("refused", "true")
		config.Mounts = c.mounts
		if c.image != "" {
			config.Image.Image = c.image
		}
		_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.Sandbox, Config: config, SandboxConfig: pod.Config})
		if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) {
			t.Errorf("%v, want %s %q", err, c.code, c.want)
		}
	}
	b.RemovePod(pod.Sandbox)
	if left := volumeMounts(b); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// artifactForUsers: in a user namespace the files belong to its root.
func artifactForUsers(t *testing.T, b *harness.Berth, ref string) {
	b.Needs(t, translate.UserNamespaces)
	pod := runPodWith(b, "artifact-users", "sleep 1000", inUsers(func(_ *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{
			ContainerPath: "/volume", Readonly: true, Image: &runtimeapi.ImageSpec{Image: ref}, UidMappings: idRange(usersRoot), GidMappings: idRange(usersRoot),
		})
	}))
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{{"stat -c %u:%g /volume /volume/conf /volume/conf/a.json; cat /volume/conf/a.json", "0:0 0:0 0:0 {}"}})
}
