package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/probe"
)

func TestDevices(t *testing.T) {
	f, rules := Finder{&probe.Pool{Timeout: time.Second, Limit: 8}}, &Rules{}
	config := func(host, container string) *runtimeapi.ContainerConfig {
		return &runtimeapi.ContainerConfig{Devices: []*runtimeapi.Device{{HostPath: host, ContainerPath: container, Permissions: "rw"}}}
	}
	got, err := f.Of(context.Background(), rules, config("/dev/null", "/dev/nothing"))
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if d := got[0]; d.Path != "/dev/nothing" || d.Type != "c" || d.Major != 1 || d.Minor != 3 || d.Access != "rw" {
		t.Errorf("/dev/null: %+v", d)
	}
	for _, bad := range []string{"/etc/passwd", "/dev/nope"} {
		if _, err := f.Of(context.Background(), rules, config(bad, "")); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v, want kind Invalid", bad, err)
		}
	}
	all, err := nodesBelow("/dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if strings.HasPrefix(d.Source, "/dev/pts/") || d.Source == "/dev/console" {
			t.Errorf("%s is a container's own", d.Source)
		}
	}
}

// TestConcurrentDeviceLookups: concurrent requests for the same node share one lookup. Requests for
// other nodes do not wait for it.
func TestConcurrentDeviceLookups(t *testing.T) {
	f, rules := Finder{&probe.Pool{Timeout: time.Second, Limit: 8}}, &Rules{OwnedByUser: true}
	var wg sync.WaitGroup
	for i := range 400 {
		wg.Go(func() {
			to, access := fmt.Sprint("/dev/mine", i), []string{"r", "rwm"}[i%2]
			got, err := f.Of(context.Background(), rules, &runtimeapi.ContainerConfig{
				Devices: []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: to, Permissions: access}},
				Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					RunAsUser: &runtimeapi.Int64Value{Value: int64(i)},
				}},
			})
			if err != nil || len(got) != 1 || got[0].Path != to || got[0].Access != access || got[0].UID != uint32(i) {
				t.Errorf("asked for %s %s of %d: %+v, %v", to, access, i, got, err)
			}
		})
	}
	wg.Wait()
}

// A device that a container requests replaces a device of the configuration at the same path.
func TestAddedDevices(t *testing.T) {
	f, rules := Finder{&probe.Pool{Timeout: time.Second, Limit: 8}}, &Rules{Added: []*runtimeapi.Device{
		{HostPath: "/dev/zero", ContainerPath: "/dev/a", Permissions: "r"}, {HostPath: "/dev/zero", ContainerPath: "/dev/b", Permissions: "r"},
	}}
	got, err := f.Of(t.Context(), rules, &runtimeapi.ContainerConfig{Devices: []*runtimeapi.Device{{HostPath: "/dev/full", ContainerPath: "/dev/b", Permissions: "rw"}}})
	if err != nil || len(got) != 2 || got[0].Path != "/dev/a" || got[0].Minor != 5 || got[1].Path != "/dev/b" || got[1].Minor != 7 || got[1].Access != "rw" {
		t.Errorf("%+v, %v", got, err)
	}
	rules = &Rules{Added: []*runtimeapi.Device{{HostPath: "/dev/no-such-device", Permissions: "r"}}}
	if got, err := f.Of(t.Context(), rules, &runtimeapi.ContainerConfig{}); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "/dev/no-such-device") {
		t.Errorf("one that is missing: %v, %v", got, err)
	}
}
