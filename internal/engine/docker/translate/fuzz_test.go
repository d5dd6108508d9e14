package translate

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/shape"
	"github.com/berthrun/berth/internal/errs"
)

// FuzzRequests: for any bytes from a client, a request becomes one for each kind of engine that can be
// encoded, keeps the container in its pod and gives it no more than it asks for; or it is refused as a
// fault of the request.
func FuzzRequests(f *testing.F) {
	for _, facts := range engines() {
		pause, in := kubelets(facts)
		sandbox, err := proto.Marshal(pause.Spec.Config)
		if err != nil {
			f.Fatal(err)
		}
		container, err := proto.Marshal(in.Spec.Config)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(sandbox, container)
	}
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, sandbox, container []byte) {
		pod, config := &runtimeapi.PodSandboxConfig{}, &runtimeapi.ContainerConfig{}
		if proto.Unmarshal(sandbox, pod) != nil || proto.Unmarshal(container, config) != nil {
			return
		}
		for name, facts := range engines() {
			pause, in := kubelets(facts)
			err := errors.Join(shape.Sandbox(pod), shape.Container(config))
			if err == nil {
				err = errors.Join(CheckSandbox(pod, facts), CheckContainer(config, pod, facts))
			}
			if err != nil {
				blames(t, err)
				continue
			}
			pause.Spec.Config, in.Spec.Config = pod, config
			checkRequests(t, name, pause, in)
		}
	})
}

func checkRequests(t *testing.T, name string, pause SandboxInput, in ContainerInput) {
	t.Helper()
	config := in.Spec.Config
	made, err := Sandbox(pause)
	if err != nil {
		blames(t, err)
		return
	}
	got, err := Container(in)
	if err != nil {
		blames(t, err)
		return
	}
	data, err := json.Marshal([]any{made, got})
	if err != nil {
		t.Fatalf("%s: the request cannot be written: %v", name, err)
	}
	if strings.Contains(string(data), `\u0000`) {
		t.Errorf("%s: the request has a NUL: %s", name, data)
	}
	host := got.HostConfig
	switch {
	case made.HostConfig.Privileged, host.Privileged && !config.GetLinux().GetSecurityContext().GetPrivileged():
		t.Errorf("%s: privileged", name)
	case host.NetworkMode != "host" && host.NetworkMode != "container:pause1":
		t.Errorf("%s: network %s", name, host.NetworkMode)
	case host.Resources.CgroupParent != in.CgroupParent, got.Config.User != "1000:1001":
		t.Errorf("%s: cgroup %s, user %s", name, host.Resources.CgroupParent, got.Config.User)
	case host.MaskedPaths == nil, host.ReadonlyPaths == nil, host.RestartPolicy.Name != "no":
		t.Errorf("%s: the engine's own paths or policy of restarts", name)
	}
}

func blames(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.Unsupported) {
		t.Errorf("%v blames nobody", err)
	}
}
