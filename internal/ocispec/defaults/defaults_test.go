package defaults

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
)

func TestParse(t *testing.T) {
	got := Parse(Texts{
		Seccomp:      "runtime/default",
		Env:          []string{"TZ=UTC", "EMPTY=", "EQUALS=a=b"},
		Sysctls:      []string{"net.core.somaxconn=1024", "kernel.shmmax=5"},
		Ulimits:      []string{"nofile=1024:4096", "core=0", "memlock=unlimited"},
		Capabilities: []string{"chown", "CAP_KILL"},
		Devices:      []string{"/dev/fuse", "/dev/a:/dev/b", "/dev/c:/dev/d:r"},
	}, func(key string, err error) { t.Errorf("%s: %v", key, err) })
	want := &Defaults{
		Container: ocispec.Defaults{
			Capabilities: []string{"CAP_CHOWN", "CAP_KILL"},
			Env:          []string{"TZ=UTC", "EMPTY=", "EQUALS=a=b"},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 4096},
				{Type: "RLIMIT_CORE"},
				{Type: "RLIMIT_MEMLOCK", Soft: math.MaxUint64, Hard: math.MaxUint64},
			},
			Seccomp: request.SeccompProfile{Default: true},
		},
		Sysctls: map[string]string{"net.core.somaxconn": "1024", "kernel.shmmax": "5"},
		Devices: []*runtimeapi.Device{
			{HostPath: "/dev/fuse", ContainerPath: "/dev/fuse", Permissions: "rwm"},
			{HostPath: "/dev/a", ContainerPath: "/dev/b", Permissions: "rwm"},
			{HostPath: "/dev/c", ContainerPath: "/dev/d", Permissions: "r"},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestNothingSaid(t *testing.T) {
	got := Parse(Texts{}, func(key string, err error) { t.Errorf("%s: %v", key, err) })
	if got.Container.Capabilities == nil || len(got.Container.Capabilities) > 0 {
		t.Errorf("no capabilities are %#v", got.Container.Capabilities)
	}
	all := Parse(Texts{Capabilities: []string{"all", "chown"}}, func(key string, err error) { t.Errorf("%s: %v", key, err) })
	if diff := cmp.Diff(request.AllCapabilities(), all.Container.Capabilities); diff != "" {
		t.Errorf("ALL (-want +got):\n%s", diff)
	}
}

func TestFaultsAreToldByKey(t *testing.T) {
	for _, c := range []struct {
		key   string
		texts Texts
	}{
		{"seccomp", Texts{Seccomp: "docker/default"}},
		{"seccomp", Texts{Seccomp: "profile.json"}},
		{"env", Texts{Env: []string{"NAME"}}},
		{"env", Texts{Env: []string{"=value"}}},
		{"env", Texts{Env: []string{"A=a\x00"}}},
		{"capabilities", Texts{Capabilities: []string{"CAP_FLY"}}},
		{"sysctls", Texts{Sysctls: []string{"net.core.somaxconn"}}},
		{"sysctls", Texts{Sysctls: []string{"kernel.panic=1"}}},
		{"sysctls", Texts{Sysctls: []string{"net.core.somaxconn=1\n2"}}},
		{"ulimits", Texts{Ulimits: []string{"files=1"}}},
		{"ulimits", Texts{Ulimits: []string{"nofile"}}},
		{"ulimits", Texts{Ulimits: []string{"nofile=2:1"}}},
		{"ulimits", Texts{Ulimits: []string{"nofile=many"}}},
		{"ulimits", Texts{Ulimits: []string{"nofile=1", "nofile=2"}}},
		{"devices", Texts{Devices: []string{"fuse"}}},
		{"devices", Texts{Devices: []string{"/dev/a:b"}}},
		{"devices", Texts{Devices: []string{"/dev/a:/dev/b:x"}}},
		{"devices", Texts{Devices: []string{"/dev/a:/dev/b:r:w"}}},
	} {
		told := 0
		Parse(c.texts, func(key string, err error) {
			told++
			if key != c.key || !errors.Is(err, errs.Invalid) {
				t.Errorf("%+v: fault of %s: %v", c.texts, key, err)
			}
		})
		if told != 1 {
			t.Errorf("%+v: %d faults", c.texts, told)
		}
	}
}
