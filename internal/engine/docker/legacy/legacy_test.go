package legacy

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/checkpoints"
	"github.com/berthrun/berth/internal/errs"
)

const (
	sandboxID   = "5a0db0c1f0a6e1f5a0db0c1f0a6e1f5a0db0c1f0a6e1f5a0db0c1f0a6e1f0001"
	containerID = "c0c1f0a6e1f5a0db0c1f0a6e1f5a0db0c1f0a6e1f5a0db0c1f0a6e1f00000002"
)

// read reads an answer of an engine about a container of cri-dockerd.
func read(t *testing.T, name string) *container.InspectResponse {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var c container.InspectResponse
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	return &c
}

func TestSandbox(t *testing.T) {
	cp := &checkpoints.Checkpoint{Ports: []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: 8080}}}
	got, err := Sandbox(read(t, "sandbox.json"), cp)
	if err != nil {
		t.Fatal(err)
	}
	want := &engine.FormerSandbox{
		ID: sandboxID, CreatedAt: 1646300000123456789,
		Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: "0c8e5a1e-0000-4000-8000-000000000001", Attempt: 2},
			Hostname: "web", LogDirectory: "/var/log/pods/shop_web_0c8e5a1e-0000-4000-8000-000000000001",
			PortMappings: cp.Ports,
			Labels: map[string]string{
				"app": "web", "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "shop",
				"io.kubernetes.pod.uid": "0c8e5a1e-0000-4000-8000-000000000001",
			},
			Annotations: map[string]string{"kubernetes.io/config.source": "api", "kubernetes.io/config.seen": "2022-03-03T09:33:19Z"},
			Linux: &runtimeapi.LinuxPodSandboxConfig{
				CgroupParent: "/kubepods/besteffort/pod0c8e5a1e", Sysctls: map[string]string{"net.core.somaxconn": "1024"},
				SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{
					Pid: runtimeapi.NamespaceMode_CONTAINER,
				}},
			},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestContainer(t *testing.T) {
	got, err := Container(read(t, "container.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := &engine.FormerContainer{
		ID: containerID, SandboxID: sandboxID, ImageID: "sha256:1111", StopSignal: "SIGQUIT",
		LogPath:   "/var/log/pods/shop_web_0c8e5a1e-0000-4000-8000-000000000001/nginx/3.log",
		CreatedAt: 1646300001000000000, StartedAt: 1646300002500000000,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "nginx", Attempt: 3},
			Image:    &runtimeapi.ImageSpec{Image: "sha256:1111"}, Command: []string{"/entry"}, Args: []string{"nginx"}, WorkingDir: "/srv",
			Envs: []*runtimeapi.KeyValue{{Key: "PATH", Value: []byte("/bin")}, {Key: "A", Value: []byte("b=c")}},
			Labels: map[string]string{
				"io.kubernetes.container.name": "nginx", "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "shop",
				"io.kubernetes.pod.uid": "0c8e5a1e-0000-4000-8000-000000000001",
			},
			Annotations: map[string]string{
				"io.kubernetes.container.hash": "8f4f4b1c", "io.kubernetes.container.restartCount": "3",
				"io.kubernetes.pod.terminationGracePeriod": "30",
			},
			Mounts: []*runtimeapi.Mount{
				{ContainerPath: "/data", HostPath: "/var/lib/kubelet/pods/x/data", Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
				{ContainerPath: "/etc/hosts", HostPath: "/var/lib/kubelet/pods/x/etc-hosts", Readonly: true},
			},
			LogPath: "nginx/3.log",
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources: &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 102, MemoryLimitInBytes: 1 << 28, OomScoreAdj: 999},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				},
			},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What a person or an older release has changed is read from the other place that has it.
func TestNamesAndLabels(t *testing.T) {
	renamed := read(t, "container.json")
	renamed.Name = "/debug-me"
	if got, err := Container(renamed); err != nil || got.Config.GetMetadata().GetName() != "nginx" || got.Config.GetMetadata().GetAttempt() != 3 {
		t.Errorf("renamed: %v, %v", got, err)
	}
	bare := read(t, "sandbox.json")
	for _, key := range []string{podName, podNamespace, podUID} {
		delete(bare.Config.Labels, key)
	}
	if got, err := Sandbox(bare, nil); err != nil || got.Config.GetMetadata().GetName() != "web" || len(got.Config.GetPortMappings()) != 0 {
		t.Errorf("without labels of the pod: %v, %v", got, err)
	}
	bare.Name = "/debug-me"
	if _, err := Sandbox(bare, nil); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), sandboxID) {
		t.Errorf("without both: %v", err)
	}
	nameless := read(t, "container.json")
	nameless.Name = "/debug-me"
	for _, key := range []string{podName, podNamespace, podUID} {
		delete(nameless.Config.Labels, key)
	}
	if _, err := Container(nameless); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), containerID) {
		t.Errorf("a container without both: %v", err)
	}
	lost := read(t, "container.json")
	delete(lost.Config.Labels, "io.kubernetes.sandbox.id")
	if _, err := Container(lost); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "shop/web") {
		t.Errorf("without its sandbox: %v", err)
	}
	short := read(t, "container.json")
	short.ID = "c0c1"
	if _, err := Container(short); !errors.Is(err, errs.Invalid) {
		t.Errorf("short id: %v", err)
	}
}

// TestLabelsOfOthers: what people run from an image that was made of a pod's container has all the
// pod's labels. It is left alone.
func TestLabelsOfOthers(t *testing.T) {
	for what, change := range map[string]func(*container.InspectResponse){
		"docker run":                     func(c *container.InspectResponse) { c.Name, c.HostConfig.NetworkMode = "/happy_almeida", "bridge" },
		"docker run on the host network": func(c *container.InspectResponse) { c.HostConfig.NetworkMode = "host" },
		"docker run without a network":   func(c *container.InspectResponse) { c.HostConfig.NetworkMode = "none" },
		"in the network of another":      func(c *container.InspectResponse) { c.HostConfig.NetworkMode = "container:" + containerID },
	} {
		c := read(t, "container.json")
		change(c)
		got, err := Container(c)
		var foreign *ForeignError
		if !errors.As(err, &foreign) || foreign.ID != containerID || !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	for _, name := range []string{
		"/happy_almeida", "/k8s_nginx_web_shop_0c8e5a1e-0000-4000-8000-000000000001_2", "/k8s_POD_web_shop_uid_0",
		"/k8s_POD_web_other_0c8e5a1e-0000-4000-8000-000000000001_2", "/k8s_POD_other_shop_0c8e5a1e-0000-4000-8000-000000000001_2",
	} {
		c := read(t, "sandbox.json")
		c.Name = name
		got, err := Sandbox(c, nil)
		var foreign *ForeignError
		if !errors.As(err, &foreign) || foreign.ID != sandboxID || !errors.Is(err, errs.Invalid) {
			t.Errorf("a sandbox with the name %s: %v, %v", name, got, err)
		}
	}
}

func TestHostNamespaces(t *testing.T) {
	c := read(t, "sandbox.json")
	c.HostConfig.NetworkMode, c.HostConfig.PidMode, c.HostConfig.IpcMode = "host", "host", "host"
	got, err := Sandbox(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	const node = runtimeapi.NamespaceMode_NODE
	if o := got.Config.GetLinux().GetSecurityContext().GetNamespaceOptions(); o.GetNetwork() != node || o.GetPid() != node || o.GetIpc() != node {
		t.Errorf("options %v", o)
	}
	// The checkpoint says it too.
	got, err = Sandbox(read(t, "sandbox.json"), &checkpoints.Checkpoint{HostNetwork: true})
	if err != nil || got.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != node {
		t.Errorf("%v, %v", got, err)
	}
}

func TestJoin(t *testing.T) {
	const uid = "0c8e5a1e-0000-4000-8000-000000000001"
	for path, want := range map[string]string{
		"/logs/shop_web_" + uid + "/nginx/3.log":          "/logs/shop_web_" + uid,
		"/var/log/pods/shop_web_" + uid + "/nginx/17.log": "/var/log/pods/shop_web_" + uid,
		"/var/log/pods/" + uid + "/nginx/0.log":           "/var/log/pods/" + uid,
		"/var/log/pods/" + uid + "/nginx_0.log":           "/var/log/pods/" + uid,
		"relative/3.log":                                  "",
		"/etc/cron.d/x":                                   "",
		"/etc/profile.d/nginx.sh":                         "",
		"/etc/" + uid + "/nginx/0.log":                    "",
		"/logs/shop_web_1/nginx/3.log":                    "", // another pod's
		"/logs/shop_web_" + uid + "/other/3.log":          "",
		"/logs/shop_web_" + uid + "/nginx/3.sh":           "",
		"/logs/shop_web_" + uid + "/nginx/a.log":          "",
		"/logs/shop_web_" + uid + "/nginx_3.log":          "",
		"/x/../logs/shop_web_" + uid + "/nginx/3.log":     "",
	} {
		c := read(t, "container.json")
		c.Config.Labels["io.kubernetes.container.logpath"] = path
		c.HostConfig.PidMode = "container:" + sandboxID
		one, err := Container(c)
		if err != nil {
			t.Fatal(err)
		}
		sandbox, err := Sandbox(read(t, "sandbox.json"), nil)
		if err != nil {
			t.Fatal(err)
		}
		own := sandbox.Config.GetLogDirectory()
		Join(sandbox, []*engine.FormerContainer{one, {ID: "x", SandboxID: "another", LogPath: "/a/b/c.log"}})
		if want == "" {
			if want = own; one.LogPath != "" || one.Config.GetLogPath() != "" {
				t.Errorf("%s: root would write to %q", path, one.LogPath)
			}
		} else if got := filepath.Join(sandbox.Config.GetLogDirectory(), one.Config.GetLogPath()); got != path {
			t.Errorf("%s: the log of a restarted container would be at %s", path, got)
		}
		if got := sandbox.Config.GetLogDirectory(); got != want {
			t.Errorf("%s: directory %q, want %q", path, got, want)
		}
		if got := sandbox.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid(); got != runtimeapi.NamespaceMode_POD {
			t.Errorf("pid namespace %v", got)
		}
	}
}

// A container of another pod that names a sandbox does not move its logs.
func TestJoinOfAnotherPod(t *testing.T) {
	c := read(t, "container.json")
	c.Name = "/k8s_nginx_other_shop_uid_0"
	c.Config.Labels[podName], c.Config.Labels[podUID] = "other", "uid"
	c.Config.Labels["io.kubernetes.container.logpath"] = "/etc/shop_other_uid/nginx/0.log"
	one, err := Container(c)
	if err != nil {
		t.Fatal(err)
	}
	sandbox, err := Sandbox(read(t, "sandbox.json"), nil)
	if err != nil {
		t.Fatal(err)
	}
	own := sandbox.Config.GetLogDirectory()
	if Join(sandbox, []*engine.FormerContainer{one}); sandbox.Config.GetLogDirectory() != own {
		t.Errorf("logs of new containers go to %s", sandbox.Config.GetLogDirectory())
	}
}

// FuzzLogOf: a log that is accepted is below the log directory of its pod, in a file that only a
// kubelet would call so.
func FuzzLogOf(f *testing.F) {
	f.Add("/var/log/pods/shop_web_uid/nginx/3.log", "nginx", "web", "shop", "uid")
	f.Add("/var/log/pods/uid/nginx_3.log", "nginx", "web", "shop", "uid")
	f.Add("/etc/profile.d/x.sh", "profile.d", "", "etc", "..")
	f.Add("/var/log/pods/../0.log", "..", "a", "b", ".")
	f.Fuzz(func(t *testing.T, path, name, podOf, namespace, uid string) {
		c := &container.InspectResponse{ID: containerID, Config: &container.Config{Labels: map[string]string{
			"io.kubernetes.container.logpath": path, "io.kubernetes.container.name": name,
			podName: podOf, podNamespace: namespace, podUID: uid,
		}}}
		got, dir := LogOf(c)
		if got == "" && dir == "" {
			return
		}
		below, err := filepath.Rel(dir, got)
		if err != nil || !filepath.IsLocal(below) || got != path || !strings.HasSuffix(below, ".log") {
			t.Errorf("%q is accepted in %q", got, dir)
		}
		if filepath.Base(dir) != namespace+"_"+podOf+"_"+uid && dir != "/var/log/pods/"+uid {
			t.Errorf("%q is accepted in %q, which is not the pod's", got, dir)
		}
	})
}

func TestOriginOf(t *testing.T) {
	name := []string{"/k8s_nginx_web_shop_uid_0"}
	for what, c := range map[string]struct {
		labels map[string]string
		names  []string
		want   Origin
	}{
		"a container of dockershim": {map[string]string{"io.kubernetes.docker.type": "container"}, name, Adoptable},
		"a sandbox of cri-dockerd":  {map[string]string{"io.kubernetes.docker.type": "podsandbox"}, []string{"/renamed"}, Adoptable},
		"a container of berth": {map[string]string{
			"io.kubernetes.docker.type": "container", "run.berth.instance": "default", "run.berth.id": "1",
		}, name, Other},
		"a container of an older kubelet": {nil, name, TooOld},
		"another type":                    {map[string]string{"io.kubernetes.docker.type": "x"}, name, TooOld},
		"a container of a person":         {map[string]string{"app": "web"}, []string{"/web"}, Other},
	} {
		if got := OriginOf(c.labels, c.names); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

func TestClaim(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(Claim(dir, "default"), Claim(dir, "default")); err != nil {
		t.Fatal(err)
	}
	err := Claim(dir, "7f3a")
	if !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), `"default"`) || !strings.Contains(err.Error(), filepath.Join(dir, ClaimName)) {
		t.Errorf("%v", err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("files %v", files)
	}
	if err := Claim(filepath.Join(dir, "absent"), "default"); err == nil {
		t.Error("a claim in a directory that does not exist")
	}
}
