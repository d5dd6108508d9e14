package request

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/requesttest"
)

// requests returns the requests for a pod and for a container in it.
type requests struct {
	SandboxConfig *runtimeapi.PodSandboxConfig
	Config        *runtimeapi.ContainerConfig
}

func kubeletRequests() requests {
	return requests{SandboxConfig: requesttest.KubeletSandbox(), Config: requesttest.KubeletContainer()}
}

func TestUnifiedAnnotation(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString([]byte("8:0 rbps=1"))
	for name, c := range map[string]struct {
		key, value string
		allowed    bool
		want       map[string]string // without memory.oom.group, which the request has
	}{
		"both forms of values":            {"unified-cgroup.crio.io/server", "memory.high=1048577;io.max=" + encoded + ";", true, map[string]string{"memory.high": "1048577", "io.max": "8:0 rbps=1"}},
		"a number that base64 can decode": {"unified-cgroup.crio.io/server", "memory.high=67108864;memory.max=max", true, map[string]string{"memory.high": "67108864", "memory.max": "max"}},
		"the older name":                  {"io.kubernetes.cri-o.UnifiedCgroup.server", "memory.oom.group=0", true, map[string]string{"memory.oom.group": "0"}},
		"another container's":             {"unified-cgroup.crio.io/client", "memory.high=1", true, nil},
		"not allowed":                     {"unified-cgroup.crio.io/server", "memory.high=1", false, nil},
	} {
		in := kubeletRequests()
		in.SandboxConfig.Annotations[c.key] = c.value
		before := proto.CloneOf(in.Config)
		want := map[string]string{"memory.oom.group": "1"}
		for file, value := range c.want {
			want[file] = value
		}
		var allowed []string
		if c.allowed {
			allowed = []string{CRIOLinkLogs, CRIOUnified}
		}
		got, err := WithAnnotations(in.Config, in.SandboxConfig, allowed)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got.GetLinux().GetResources().GetUnified()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if !proto.Equal(before, in.Config) {
			t.Errorf("%s: the request was changed", name)
		}
	}
	in := kubeletRequests()
	in.SandboxConfig.Annotations["unified-cgroup.crio.io/server"] = "memory.high"
	_, err := WithAnnotations(in.Config, in.SandboxConfig, []string{CRIOUnified})
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `annotations["unified-cgroup.crio.io/server"]`) {
		t.Errorf("no value: %v", err)
	}
}

func TestLinkLogsAnnotation(t *testing.T) {
	const kubelets = "/var/lib/kubelet/pods/1f0c/volumes/kubernetes.io~empty-dir/"
	in := kubeletRequests()
	in.SandboxConfig.Annotations[CRIOLinkLogs] = "logs"
	in.Config.Mounts = []*runtimeapi.Mount{
		{ContainerPath: "/logs", HostPath: kubelets + "logs", SelinuxRelabel: true},
		{ContainerPath: "/other", HostPath: kubelets + "other", SelinuxRelabel: true},
		{ContainerPath: "/foreign", HostPath: strings.Replace(kubelets, "1f0c", "2f0c", 1) + "logs"},
		{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: "x"}},
	}
	want := proto.CloneOf(in.Config)
	want.Mounts[0] = &runtimeapi.Mount{ContainerPath: "/logs", HostPath: in.SandboxConfig.LogDirectory, Readonly: true}
	got, err := WithAnnotations(in.Config, in.SandboxConfig, []string{CRIOLinkLogs})
	if err != nil || !proto.Equal(want, got) {
		t.Errorf("got %v, %v", got, err)
	}
	for name, change := range map[string]func(c *runtimeapi.PodSandboxConfig){
		"a path": func(c *runtimeapi.PodSandboxConfig) { c.Annotations[CRIOLinkLogs] = "../other" },
		"no log": func(c *runtimeapi.PodSandboxConfig) { c.LogDirectory = "" },
		"no uid": func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Uid = "" },
	} {
		sandbox := proto.CloneOf(in.SandboxConfig)
		change(sandbox)
		if _, err := WithAnnotations(in.Config, sandbox, []string{CRIOLinkLogs}); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), CRIOLinkLogs) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
