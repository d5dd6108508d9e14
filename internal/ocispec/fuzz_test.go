package ocispec

import (
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/shape"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// FuzzMessages: for any bytes from a client and an image, a request becomes a spec that can be
// encoded and contains no NUL, or an error that blames the request.
func FuzzMessages(f *testing.F) {
	plain := plainInput()
	sandbox, err := proto.Marshal(plain.SandboxConfig)
	if err != nil {
		f.Fatal(err)
	}
	container, err := proto.Marshal(plain.Config)
	if err != nil {
		f.Fatal(err)
	}
	image, err := json.Marshal(imagespec.Image{Config: plain.Image})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sandbox, container, image)
	f.Add([]byte{}, []byte{}, []byte(`{"config":{"Env":["=","a"],"User":"0:0","WorkingDir":"../..","Volumes":{"/../x":{}}}}`))
	f.Add([]byte{}, []byte{}, []byte(`{"config":{"Volumes":{"data":{},"/data/":{},"/":{},"/proc/x":{},"/dev":{},"/a:b":{},"/etc/./hosts":{}}}}`))
	f.Fuzz(func(t *testing.T, sandbox, container, image []byte) {
		in := plainInput()
		in.SandboxConfig, in.Config = &runtimeapi.PodSandboxConfig{}, &runtimeapi.ContainerConfig{}
		var img imagespec.Image
		if proto.Unmarshal(sandbox, in.SandboxConfig) != nil || proto.Unmarshal(container, in.Config) != nil ||
			json.Unmarshal(image, &img) != nil {
			return
		}
		in.Image = img.Config
		for _, m := range in.Config.GetMounts() {
			in.Sources[m.GetHostPath()] = Source{Path: m.GetHostPath()}
		}
		err := errors.Join(shape.Sandbox(in.SandboxConfig), shape.Container(in.Config))
		if err == nil {
			err = errors.Join(check.Sandbox(in.SandboxConfig), check.Container(in.Config, in.SandboxConfig))
		}
		if err == nil {
			in.User, err = ResolveUser(in.Config, in.Image, []byte(testPasswd), []byte(testGroup))
		}
		if err != nil {
			blames(t, err)
			return
		}
		in.ImageVolumes = volumesOf(t, in)
		spec, err := Container(in)
		if err != nil {
			blames(t, err)
			return
		}
		data, err := json.Marshal(spec)
		if err != nil {
			t.Fatalf("the spec cannot be written: %v", err)
		}
		if strings.Contains(string(data), `\u0000`) {
			t.Errorf("the spec holds a NUL: %s", data)
		}
		for _, m := range spec.Mounts {
			if strings.Contains(m.Destination+"/", "/../") {
				t.Errorf("a mount leads to %q", m.Destination)
			}
		}
	})
}

// volumesOf returns the image's volumes and checks that none is at a forbidden path.
func volumesOf(t *testing.T, in Input) []ImageVolume {
	t.Helper()
	paths, _, err := ImageVolumes(in.Image, in.Config, func(path string) (string, error) { return path, nil })
	if err != nil {
		blames(t, err)
	}
	var volumes []ImageVolume
	for i, at := range paths {
		if !path.IsAbs(at) || path.Clean(at) != at || at == "/" || request.IsBelow(at, "/proc") || request.IsBelow(at, "/etc/hosts") || i > 0 && paths[i-1] >= at {
			t.Errorf("volumes at %q", paths)
		}
		if slices.ContainsFunc(in.Config.GetMounts(), func(m *runtimeapi.Mount) bool { return request.IsBelow(at, path.Clean(m.GetContainerPath())) }) {
			t.Errorf("a volume at %q hides a mount", at)
		}
		volumes = append(volumes, ImageVolume{Destination: at, Source: "/volumes"})
	}
	return volumes
}

func blames(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.Unsupported) {
		t.Errorf("%v blames nobody", err)
	}
}
